"""FedHKD: clients share what they know of each class, as mean features and mean soft predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Method,
    Phase,
    Refuses,
    RoundContext,
    Scored,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Task,
    Tree,
    Upload,
    option,
    register,
    scratch,
    tree,
)
from ..contract.parts.class_statistics import (
    add_rows,
    distance,
    feature_size,
    merge_means,
    no_features,
    shared_means,
)
from ..contract.parts.heads import check_head, head_outputs

FEATURES, SOFT = "fedhkd.features", "fedhkd.soft"
OWN_FEATURES, OWN_SOFT, NOISE = "fedhkd.features.own", "fedhkd.soft.own", "fedhkd.noise"


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

    All clients predict with the global model; the personal one of the paper is what a client has right after local
    training (`after_local`). The server sees the clients' class counts and, with noise, class means: no privacy is
    claimed. Run it: ``idiolect run fedhkd``.
    """

    about = About(
        "FedAvg with shared mean features and soft predictions of each class",
        paper="chen2023fedhkd",
        kind="global",
        reveals="the trained model, and per class the mean feature with noise, the mean soft prediction and the count",
        caution="class counts leave the client; the noise is not calibrated to any privacy budget",
    )
    refuses = Refuses(other_networks="it works with the features of one network")
    one_model = True
    identities: ClassVar[dict[str, str]] = {"fedhkd(lam=0, gamma=0)": "fedavg"}

    lam: float = option(0.05, min=0.0, help="weight of the output layer's agreement with the soft predictions")
    gamma: float = option(0.05, min=0.0, help="weight of the features' distance from the mean of their class")
    temperature: float = option(0.5, above=0.0, help="temperature of soft predictions")
    sigma: float = option(2.0, min=0.0, help="standard deviation of the noise on mean features")
    min_share: float = option(0.0, min=0.0, max=1.0, help="classes of a smaller share of a client's data are not sent")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, and what is known of each class; room for what the client knows, and for its noise."""
        return {
            **super().slots,
            FEATURES: shared_means(FEATURES, no_features),
            SOFT: shared_means(SOFT, self.no_predictions),
            OWN_FEATURES: scratch(no_features),
            OWN_SOFT: scratch(self.no_predictions),
            NOISE: scratch(self.no_noise),
        }

    def no_predictions(self, ctx: RoundContext) -> Tree:
        """Mean soft predictions of no class."""
        outputs = head_outputs(ctx.task, ctx.initial["params"], no_features(ctx)["mean"])
        return tree.zeros_like({"mean": outputs, "count": outputs[:, 0]})

    def no_noise(self, ctx: RoundContext) -> Tree:
        """No noise on the mean features."""
        return {"features": no_features(ctx)["mean"]}

    def check(self, task: Task) -> None:
        """There have to be classes, and an output layer on a feature vector."""
        check_head(self.name, task)

    # -- client ----------------------------------------------------------------------------------

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Training, then a look at what the trained model knows."""
        noise = (("features", (ctx.task.classes or 0, feature_size(ctx.task))),)
        return (Phase(self.step), Phase(self.measure, "knowledge", slots=(), epochs=1, noise=noise))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss with its two terms."""

        def loss(trees: Slots) -> Scored:
            plain = ctx.task.loss(trees["params"], work["buffers"], batch)
            agree = self.disagreement(ctx, trees["params"], work)
            near = distance(plain.features, batch.y, batch.weight, work[FEATURES])
            return plain._replace(loss=plain.loss + self.lam * agree + self.gamma * near)

        return ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def disagreement(self, ctx: ClientContext, params: Tree, work: Slots) -> Tensor:
        """The mean divergence of the output layer, on the classes' features, from their soft predictions."""
        target = work[SOFT]["mean"]
        predicted = (head_outputs(ctx.task, params, work[FEATURES]["mean"]) / self.temperature).log_softmax(1)
        known = (work[SOFT]["count"] > 0).to(target.dtype)
        return (known * (torch.xlogy(target, target) - target * predicted).sum(1)).sum() / known.sum().clamp_min(1)

    def measure(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add a batch to the own knowledge; the noise is that of the first batch."""
        out = ctx.task.forward(work["params"], work["buffers"], batch.x)
        values = {OWN_FEATURES: out.features, OWN_SOFT: (out.outputs / self.temperature).softmax(1)}
        own = {slot: add_rows(work[slot], rows, batch.y, batch.weight) for slot, rows in values.items()}
        return {**work, **own, NOISE: dict(ctx.noise) if ctx.step == 0 else work[NOISE]}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the model and, of classes that are frequent enough, the knowledge."""
        features, soft = work[OWN_FEATURES], work[OWN_SOFT]
        count = torch.where(features["count"] >= self.min_share * ctx.samples, features["count"], 0.0)
        sent = (count > 0)[:, None]
        blurred = features["mean"] + self.sigma * work[NOISE]["features"]
        means = {FEATURES: blurred, SOFT: soft["mean"]}
        knowledge = {slot: {"mean": torch.where(sent, mean, 0.0), "count": count} for slot, mean in means.items()}
        return {**work, **knowledge}

    # -- server ----------------------------------------------------------------------------------

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """Means of models, and of each class's knowledge; a class that nobody sent keeps what is known of it."""
        knowledge = {slot: merge_means(sums[slot], server[slot]) for slot in (FEATURES, SOFT)}
        return {**super().aggregate(ctx, server, sums, each), **knowledge}
