"""FedHKD: clients share what they know of each class, as mean features and mean soft predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Method,
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
)
from ..contract.parts.class_statistics import added, distance, empty, feature_size, merged, require_classes
from ..contract.parts.heads import check_head, head_outputs

FEATURES = "fedhkd.features"
SOFT = "fedhkd.soft"
NOISE = "fedhkd.noise"


@register("fedhkd")
@dataclass(frozen=True)
class FedHKD(Method):
    r"""FedHKD (Chen, Wang and Vikalo, ICLR 2023): FedAvg in which clients also exchange hyper-knowledge. After training
    client i sends, for each class j that it has, the mean :math:`h_i^j` of its features, with Gaussian noise
    :math:`N(0, \sigma^2)`, and the mean soft prediction :math:`q_i^j` at temperature T. The server averages both by the
    clients' counts, and in the next round clients minimise

    .. math:: \ell + \frac{\lambda}{|J|} \sum_{j \in J} \mathrm{KL}\bigl(Q^j \,\|\, \mathrm{softmax}(g(H^j) / T)\bigr)
        + \gamma \frac{1}{n} \sum_l \frac{1}{d} \|f(x_l) - H^{y_l}\|^2, \qquad
        H^j = \frac{\sum_i n_i^j h_i^j}{\sum_i n_i^j}, \; Q^j = \frac{\sum_i n_i^j q_i^j}{\sum_i n_i^j},

    with the output layer g, the features f and the classes J of which something is known; in the first round none is.

    Hand-worked: clients with 1 and 3 samples of a class send the mean features 2 and 6: H = (2 + 18) / 4 = 5. The
    layer g(h) = (h, 0) at T = 5 predicts e : 1, so (0.731, 0.269); for Q = (1, 0) the divergence is -ln 0.731 = 0.313.

    The view is the global model; the personal one of the paper is what a client has right after local training
    (`after_local`). The server sees the clients' class counts and, with noise, class means: no privacy is claimed.
    """

    about = About(
        "FedAvg with shared mean features and soft predictions of each class",
        paper="chen2023fedhkd",
        kind="global",
        reveals="the trained model, and per class the mean feature with noise, the mean soft prediction and the count",
        caution="class counts leave the client; the noise is not calibrated to any privacy budget",
    )
    refuses = Refuses(other_networks="it works with the features of one network")
    identities: ClassVar[dict[str, str]] = {"fedhkd(lam=0, gamma=0)": "fedavg"}

    lam: float = option(0.05, min=0.0, help="weight of the output layer's agreement with the soft predictions")
    gamma: float = option(0.05, min=0.0, help="weight of the features' distance from the mean of their class")
    temperature: float = option(0.5, above=0.0, help="temperature of soft predictions")
    sigma: float = option(2.0, min=0.0, help="standard deviation of the noise on mean features")
    min_share: float = option(0.0, min=0.0, max=1.0, help="classes of a smaller share of a client's data are not sent")

    def check(self, task: Task) -> None:
        """There have to be classes, and an output layer on a feature vector."""
        check_head(self.name, task)

    def sizes(self, task: Task) -> dict[str, tuple[int, int]]:
        """Of each kind of knowledge, the number of classes and of numbers for each."""
        classes, size = require_classes(self.name, task), feature_size(task)
        params = task.net.params
        outputs = head_outputs(task, params, params[task.head_unit.params[0]].new_zeros(1, size))
        return {FEATURES: (classes, size), SOFT: (classes, outputs.shape[1])}

    # -- server ----------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, and knowledge of no class."""
        like = next(iter(ctx.initial["params"].values()))
        return {**super().server_init(ctx), **{slot: empty(*each, like) for slot, each in self.sizes(ctx.task).items()}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model and the knowledge."""
        sent = super().download(ctx, server, ids)
        return sent._replace(shared={**sent.shared, FEATURES: server[FEATURES], SOFT: server[SOFT]})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """Means of models, and of each class's knowledge; a class that nobody sent keeps what is known of it."""
        knowledge = {slot: merged([u.slots[slot] for u in uploads.values()], server[slot]) for slot in (FEATURES, SOFT)}
        return {**super().aggregate(ctx, server, uploads), **knowledge}

    # -- client ----------------------------------------------------------------------------------

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The model, the received knowledge, and room for the own."""
        work = super().begin(ctx, client, download)
        sizes = self.sizes(ctx.task)
        own = {f"{slot}.own": empty(*each, ctx.samples) for slot, each in sizes.items()}
        noise = {NOISE: {"features": ctx.samples.new_zeros(sizes[FEATURES])}}
        return {**work, **own, **noise, FEATURES: download[FEATURES], SOFT: download[SOFT]}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Training, then a look at what the trained model knows."""
        noise = (("features", self.sizes(ctx.task)[FEATURES]),)
        return (Phase(), Phase("knowledge", slots=(), epochs=1, noise=noise))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss, or a batch's share of the knowledge."""
        if ctx.phase.name == "knowledge":
            return self.learn(ctx, work, batch)

        def loss(trees: Slots) -> Scored:
            plain = ctx.task.loss(trees["params"], work["buffers"], batch)
            agree = self.disagreement(ctx, trees["params"], work)
            near = distance(plain.features, batch.y, batch.weight, work[FEATURES])
            return plain._replace(loss=plain.loss + self.lam * agree + self.gamma * near)

        return ctx.descend(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def disagreement(self, ctx: ClientContext, params: Tree, work: Slots) -> Tensor:
        """The mean divergence of the output layer, on the classes' features, from their soft predictions."""
        target = work[SOFT]["mean"]
        found = (head_outputs(ctx.task, params, work[FEATURES]["mean"]) / self.temperature).log_softmax(1)
        known = (work[SOFT]["count"] > 0).to(target.dtype)
        return (known * (torch.xlogy(target, target) - target * found).sum(1)).sum() / known.sum().clamp_min(1)

    def learn(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add a batch to the own knowledge; the noise is that of the first batch."""
        out = ctx.task.forward(work["params"], work["buffers"], batch.x)
        values = {FEATURES: out.features, SOFT: (out.outputs / self.temperature).softmax(1)}
        own = {f"{s}.own": added(work[f"{s}.own"], each, batch.y, batch.weight) for s, each in values.items()}
        return {**work, **own, NOISE: dict(ctx.noise) if ctx.step == 0 else work[NOISE]}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Send the model and, of classes that are frequent enough, the knowledge."""
        client, upload = super().end(ctx, client, work)
        features, soft = work[f"{FEATURES}.own"], work[f"{SOFT}.own"]
        count = torch.where(features["count"] >= self.min_share * ctx.samples, features["count"], 0.0)
        sent = (count > 0)[:, None]
        blurred = features["mean"] + self.sigma * work[NOISE]["features"]
        knowledge = {
            slot: {"mean": torch.where(sent, mean, 0.0), "count": count}
            for slot, mean in ((FEATURES, blurred), (SOFT, soft["mean"]))
        }
        return client, replace(upload, slots={**upload.slots, **knowledge})
