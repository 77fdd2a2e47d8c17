"""FedPAC: features aligned with global class means, and for each client its own combination of all heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..analysis.simplex import simplex_weights
from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Method,
    Needs,
    Phase,
    Refuses,
    Scored,
    ServerContext,
    Slots,
    Task,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.class_statistics import added, distance, empty, feature_size, merged, require_classes, rows
from .fedrep import in_turn

PROTOTYPES = "fedpac.prototypes"
STATISTICS = "fedpac.statistics"


@register("fedpac")
@dataclass(frozen=True)
class FedPAC(Method):
    r"""FedPAC (Xu, Tong and Huang, ICLR 2023): clients share a body :math:`\varphi` and help each other with heads.

    A client trains its head, then the body, whose features are pulled to the global mean of their class (eq. 6),

    .. math:: \min_\varphi \; f_i + \frac{\lambda}{n_i} \sum_l \frac{1}{d} \|\varphi(x_l) - c_{y_l}\|^2,

    and sends body, head and its class means :math:`c_i^k`, which the server averages by the clients' class counts.
    From the features of the *received* body on its data it also sends, with its class shares :math:`p_i^k`,

    .. math:: h_i^k = p_i^k \, E[\varphi(x) | k], \qquad V_i = \frac{1}{n_i} \Bigl(E \|\varphi(x)\|^2
        - \sum_k \|h_i^k\|^2\Bigr).

    Client i's next head is the combination of the participants' heads with the smallest expected error (eqs. 9, 11):

    .. math:: \min_{\alpha \ge 0, \sum_j \alpha_j = 1} \alpha^\top (\text{diag}(V) + D^{(i)}) \alpha, \qquad
        D_{jl}^{(i)} = \sum_k \langle h_i^k - h_j^k, h_i^k - h_l^k \rangle.

    Weights below 1e-3 become zero; where none is left the client keeps its own head. A client that is absent keeps the
    head that its last round led to; one that never trained has the mean of all heads. An unseen client starts from that
    mean and trains its head.

    Hand-worked, one class and one feature: three clients with h = 0, 1, 10 and V = 1, 1, 1. For the first client,
    diag(V) + D is [[1, 0, 0], [0, 2, 10], [0, 10, 101]]; the third gets no weight, and the first two minimise
    a^2 + 2 b^2 with a = 2/3, b = 1/3. Heads 3, 6 and 100 become 4.
    """

    about = About(
        "Aligned features and combined heads",
        paper="xu2023fedpac",
        reveals="the trained model, class counts, and means and variance of its features class by class",
        caution="class counts and means tell which classes a client has; the server keeps a head per client",
    )
    needs = Needs(server_models=True)
    refuses = Refuses(other_networks="it works with the features of one network")
    identities: ClassVar[dict[str, str]] = {"fedpac(lam=0, collaborate=false)": "fedrep(head_epochs=1)"}

    lam: float = option(1.0, min=0.0, help="weight lambda of the pull of features to the global class means")
    collaborate: bool = option(True, help="combine heads; false leaves each client its own")
    head_epochs: int = option(1, min=0, help="epochs of the head, body frozen")
    head_lr: float | None = option(None, above=0.0, help="rate of the head; none is the run's")
    smallest: float = option(1e-3, min=0.0, below=1.0, help="smaller weights of heads become zero")

    def head(self, task: Task) -> frozenset[str]:
        """The last layer."""
        return task.head(1)

    def check(self, task: Task) -> None:
        """Class means need classes and features."""
        require_classes(self.name, task)
        task.require_features(self.name)

    # -- server ------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """No class is known yet, and nobody has a head of its own."""
        classes, like = require_classes(self.name, ctx.task), next(iter(ctx.initial["params"].values()))
        return {**super().server_init(ctx), PROTOTYPES: empty(classes, feature_size(ctx.task), like)}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The body, the class means, and to each its own head, or the mean of all."""
        sent = super().download(ctx, server, ids).shared
        models = {i: {"params": {**sent["params"], **server.get(f"fedpac.head@{i}", {})}} for i in ids}
        return Download({"buffers": sent["buffers"], PROTOTYPES: server[PROTOTYPES]}, models)

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean model, the mean of each class, and the participants' new heads."""
        after = super().aggregate(ctx, server, uploads)
        means = merged([each.slots[PROTOTYPES] for each in uploads.values()], server[PROTOTYPES])
        return {**after, PROTOTYPES: means, **self.heads(ctx, server, uploads)}

    def heads(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The head of each participant: its combination of all participants' heads."""
        names, own = self.head(ctx.task), torch.eye(len(uploads), dtype=torch.float64)
        sent = [tree.pick(each.slots["params"], names) for each in uploads.values()]
        masks = [each.masks.get("params") for each in uploads.values()]
        weights = self.weights([each.slots[STATISTICS] for each in uploads.values()]) if self.collaborate else own
        before = tree.pick(server["params"], sent[0])
        return {
            f"fedpac.head@{i}": tree.mean(sent, row.tolist(), masks, server.get(f"fedpac.head@{i}", before))
            for i, row in zip(uploads, weights, strict=True)
        }

    def weights(self, statistics: Sequence[Tree]) -> Tensor:
        """The weights alpha, a row for each client (eq. 11)."""
        h = torch.stack([each["mean"].flatten() for each in statistics]).to("cpu", torch.float64)
        variance = torch.stack([each["variance"] for each in statistics]).to("cpu", torch.float64)
        found = torch.eye(len(h), dtype=torch.float64)
        for i in range(len(h)):
            apart = h[i] - h
            alpha = simplex_weights(torch.diag(variance) + apart @ apart.T)
            alpha = torch.where(alpha < self.smallest, 0.0, alpha)
            found[i] = alpha if bool(alpha.any()) else found[i]
        return found

    # -- client ------------------------------------------------------------------------------------

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The model, the global class means, and nothing measured yet."""
        work, means = super().begin(ctx, client, download), download[PROTOTYPES]
        square = torch.zeros_like(ctx.samples)
        return {**work, "fedpac.global": means, PROTOTYPES: tree.zeros_like(means), STATISTICS: {"square": square}}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """Measure the received body, train the head, then the body, and measure the class means of the new one."""
        training = in_turn(ctx.task, self.head(ctx.task), self.head_epochs, None, self.head_lr)
        return (Phase("received", slots=(), epochs=1), *training, Phase("trained", slots=(), epochs=1))

    def enter(self, ctx: ClientContext, work: Slots) -> Slots:
        """Before the new features are measured, make h and V of the received ones."""
        if ctx.phase.name != "trained":
            return work
        means = work[PROTOTYPES]
        samples = means["count"].sum().clamp_min(1)
        h = means["mean"] * (means["count"] / samples)[:, None]
        variance = (work[STATISTICS]["square"] / samples - h.square().sum()).clamp_min(0.0) / samples
        return {**work, PROTOTYPES: tree.zeros_like(means), STATISTICS: {"mean": h, "variance": variance}}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Measure features, or train the head, or the body with its pull."""
        if ctx.phase.name in ("received", "trained"):
            return self.measured(ctx, work, batch)
        if ctx.phase.name == "own":
            return super().step(ctx, work, batch)
        frozen = ctx.task.frozen(ctx.phase.part)

        def loss(trees: Slots) -> Scored:
            scored = ctx.task.loss(trees["params"], work["buffers"], batch, frozen=frozen)
            pull = distance(*rows(scored.features, batch), work["fedpac.global"])
            return scored._replace(loss=scored.loss + self.lam * pull)

        return ctx.descend(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def measured(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Features of one batch more in the class means and in the mean square."""
        features, y, weight = rows(ctx.task.forward(work["params"], work["buffers"], batch.x).features, batch)
        work = {**work, PROTOTYPES: added(work[PROTOTYPES], features, y, weight)}
        if ctx.phase.name == "trained":
            return work
        square = work[STATISTICS]["square"] + (features.square().sum(1) * weight).sum()
        return {**work, STATISTICS: {"square": square}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Send the model and what was measured."""
        client, upload = super().end(ctx, client, work)
        measured = {slot: work[slot] for slot in (PROTOTYPES, STATISTICS)}
        return client, replace(upload, slots={**upload.slots, **measured})

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its head on the shared body."""
        return (Phase("onboard", part=self.head(ctx.task)),)
