"""FedPAC: features aligned with global class means, and for each client its own combination of all heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..analysis.simplex import simplex_weights
from ..contract import About, Needs, Phase, Refuses, Slots, Sums, Tree, option, register, tree
from ..contract.context import ClientContext, ServerContext
from ..contract.messages import Download, Uploads
from ..contract.parts.class_statistics import (
    ClassMeans,
    add_rows,
    distance,
    global_of,
    no_features,
    require_classes,
    shared_means,
    shared_rows,
)
from ..contract.slots import Slot, zero
from ..task.task import Batch, Scored, Task

PROTOTYPES, STATISTICS = "fedpac.prototypes", "fedpac.statistics"


@register("fedpac")
@dataclass(frozen=True)
class FedPAC(ClassMeans):
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
    mean and trains its head. With ``private_head`` no head is sent, clients may have labels of their own, and class
    means are those of classes with the same name. Run it: ``idiolect run fedpac``.
    """

    about = About(
        "Aligned features and combined heads",
        family="private layers",
        paper="xu2023fedpac",
        reveals="the trained model, class counts, and means and variance of its features class by class",
        caution="class counts and means tell which classes a client has; the server keeps a head per client",
    )
    identities = {
        "fedpac(lam=0, collaborate=false)": "fedrep(head_epochs=1)",
        "fedpac(lam=0, private_head=true)": "fedrep(head_epochs=1)",
    }

    lam: float = option(1.0, min=0.0, help="weight lambda of the pull of features to the global class means")
    collaborate: bool = option(True, help="combine heads; false leaves each client its own")
    head_epochs: int = option(1, min=0, help="epochs of the head, body frozen")
    head_lr: float | None = option(None, above=0.0, help="learning rate of the head; none is the run's")
    onboard_epochs: int = option(10, min=0, tuned="never", help="passes in which an unseen client trains its head")
    smallest: float = option(1e-3, min=0.0, below=1.0, help="smaller weights of heads become zero")
    private_head: bool = option(False, help="heads stay on the clients, which may then have labels of their own")

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The server keeps every client's head, unless heads are private."""
        return Needs(server_models=not self.private_head)

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """Features of different networks cannot be compared; heads are combined over the same classes."""
        features = "it works with the features of one network"
        if self.private_head:
            return Refuses(other_networks=features, own_labels="")
        return Refuses(
            other_networks=features,
            own_labels="it combines clients' heads, whose outputs must mean the same (private_head=true leaves them)",
            summing="it combines the participants' heads anew for each of them",
        )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, whose head the server needs from each, the class means, and what heads are combined by."""
        means = {PROTOTYPES: shared_means(PROTOTYPES, no_features)}
        if self.private_head:
            return {**super().slots, **means}
        model = replace(super().slots["params"], up="each")
        return {"params": model, **means, STATISTICS: Slot("round", zero("square"), up="each")}

    def private_names(self, task: Task) -> frozenset[str]:
        """The head, if it is to be private."""
        return self.head(task) if self.private_head else frozenset()

    def head(self, task: Task) -> frozenset[str]:
        """The last layer."""
        return task.head(1)

    def check(self, task: Task) -> None:
        """Class means need classes and features."""
        require_classes(self.name, task)
        task.require_features(self.name)

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """Measure the received body, train the head, then the body, and measure the class means of the new one."""
        head = self.head(ctx.task)
        body = frozenset(ctx.task.names) - head
        received = Phase(self.measure_received, "received", slots=(), epochs=1)
        before = None if self.private_head else self.summarize_received
        return (
            *(() if self.private_head else (received,)),
            Phase(self.step, "own", part=head, epochs=self.head_epochs, lr=self.head_lr),
            *((Phase(self.pull, "shared", part=body),) if body else ()),
            Phase(self.measure, "trained", slots=(), epochs=1, before=before),
        )

    def measure_received(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Features of one batch more in the class means and in the sum of squares."""
        features, y, weight = self.feature_rows(ctx, work, batch)
        square = work[STATISTICS]["square"] + (features.square().sum(1) * weight).sum()
        return {**work, PROTOTYPES: add_rows(work[PROTOTYPES], features, y, weight), STATISTICS: {"square": square}}

    def pull(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the body, its features pulled to the class means (eq. 6)."""
        frozen = ctx.task.frozen(ctx.phase.part)

        def loss(trees: Slots) -> Scored:
            scored = ctx.task.loss(trees["params"], work["buffers"], batch, frozen=frozen)
            apart = distance(*shared_rows(ctx, scored.features, batch), work[global_of(PROTOTYPES)])
            return scored._replace(loss=scored.loss + self.lam * apart)

        return ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def summarize_received(self, ctx: ClientContext, work: Slots) -> Slots:
        """h and V of the received body's features; then the class means start anew."""
        means = work[PROTOTYPES]
        samples = means["count"].sum().clamp_min(1)
        h = means["mean"] * (means["count"] / samples)[:, None]
        variance = (work[STATISTICS]["square"] / samples - h.square().sum()).clamp_min(0.0) / samples
        return {**work, PROTOTYPES: tree.zeros_like(means), STATISTICS: {"mean": h, "variance": variance}}

    def measure(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Features of one batch more in the class means."""
        return {**work, PROTOTYPES: add_rows(work[PROTOTYPES], *self.feature_rows(ctx, work, batch))}

    def feature_rows(self, ctx: ClientContext, work: Slots, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The model's features on a batch, row by row."""
        return shared_rows(ctx, ctx.task.forward(work["params"], work["buffers"], batch.x).features, batch)

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The body, the class means, and to each its own head, or the mean of all."""
        if self.private_head:
            return super().download(ctx, server, ids)
        common = dict(super().download(ctx, server, ids).shared)
        params = common.pop("params")
        return Download(common, {i: {"params": {**params, **server.get(f"fedpac.head@{i}", {})}} for i in ids})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean model, the mean of each class, and the participants' new heads."""
        heads = {} if self.private_head else self.combine_heads(ctx, server, each)
        return {**super().aggregate(ctx, server, sums, each), **heads}

    def combine_heads(self, ctx: ServerContext, server: Slots, each: Uploads) -> Slots:
        """The head of each participant: its combination of all participants' heads."""
        names, uploads = self.head(ctx.task), list(each.values())
        heads = [tree.pick(upload.slots["params"], names) for upload in uploads]
        masks = [upload.masks.get("params") for upload in uploads]
        alone = torch.eye(len(uploads), dtype=torch.float64)
        weights = self.weights([upload.slots[STATISTICS] for upload in uploads]) if self.collaborate else alone
        before = tree.pick(server["params"], heads[0])
        return {
            f"fedpac.head@{i}": tree.mean(heads, row.tolist(), masks, server.get(f"fedpac.head@{i}", before))
            for i, row in zip(each, weights, strict=True)
        }

    def weights(self, statistics: Sequence[Tree]) -> Tensor:
        """The weights alpha, a row for each client (eq. 11)."""
        h = torch.stack([row["mean"].flatten() for row in statistics]).to("cpu", torch.float64)
        variance = torch.stack([row["variance"] for row in statistics]).to("cpu", torch.float64)
        weights = torch.eye(len(h), dtype=torch.float64)
        for i in range(len(h)):
            apart = h[i] - h
            alpha = simplex_weights(torch.diag(variance) + apart @ apart.T)
            alpha = torch.where(alpha < self.smallest, 0.0, alpha)
            weights[i] = alpha if bool(alpha.any()) else weights[i]
        return weights

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its head on the shared body."""
        return (Phase(self.adapt_step, "onboard", part=self.head(ctx.task), epochs=self.onboard_epochs),)
