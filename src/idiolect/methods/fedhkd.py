"""FedHKD: clients share what they know of each class, as mean features and mean soft predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..contract import About, Batch, ClientContext, Phase, Refuses, Scored, Slot, Slots, Task, option, register
from ..contract.parts.class_statistics import ClassMeans, add_rows, distance, global_of, no_features, shared_means
from ..contract.parts.heads import check_head, divergence, head_outputs, no_outputs
from ..contract.slots import keep_model, model_in, private, scratch

FEATURES, SOFT, NOISE, OWN = "fedhkd.features", "fedhkd.soft", "fedhkd.noise", "fedhkd.own"


@register("fedhkd")
@dataclass(frozen=True)
class FedHKD(ClassMeans):
    r"""FedHKD (Chen, Wang and Vikalo, ICLR 2023): after training client i also sends, for each class j that it has, the
    mean :math:`h_i^j` of its features, with noise :math:`N(0, \sigma^2)`, and the mean soft prediction :math:`q_i^j` at
    temperature T. The server averages both by the clients' counts, and in the next round clients minimise

    .. math:: \ell + \frac{\lambda}{|J|} \sum_{j \in J} \mathrm{KL}\bigl(Q^j \,\|\, \mathrm{softmax}(g(H^j) / T)\bigr)
        + \gamma \frac{1}{n} \sum_l \frac{1}{d} \|f(x_l) - H^{y_l}\|^2, \qquad
        H^j = \frac{\sum_i n_i^j h_i^j}{\sum_i n_i^j}, \; Q^j = \frac{\sum_i n_i^j q_i^j}{\sum_i n_i^j},

    with the output layer g, the features f and the known classes J. A client predicts with its model as it last trained
    it, which the paper's personal results are measured with. Run it: ``idiolect run fedhkd``.
    """

    about = About(
        "FedAvg with shared mean features and predictions of each class",
        family="knowledge instead of models",
        paper="chen2023fedhkd",
        reveals="the trained model, and per class the mean feature with noise, the mean soft prediction and the count",
        caution="class counts leave the client; the noise is not calibrated to any privacy budget",
    )
    refuses = Refuses(
        other_networks="it works with the features of one network",
        own_labels="it averages whole models, and soft predictions among the same classes",
    )
    identities = {"fedhkd(lam=0, gamma=0, predicts=global)": "fedavg"}

    lam: float = option(0.05, min=0.0, help="weight of the output layer's agreement with the soft predictions")
    gamma: float = option(0.05, min=0.0, help="weight of the features' distance from the mean of their class")
    temperature: float = option(0.5, above=0.0, help="temperature of soft predictions")
    sigma: float = option(2.0, min=0.0, tuned="never", help="standard deviation of the noise on mean features")
    predicts: str = option("local", choices=("local", "global"), help="predict with the model as trained, or the mean")
    min_share: float = option(0.0, min=0.0, max=1.0, help="classes of a smaller share of a client's data are not sent")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, and what is known of each class, as means of features and of soft predictions."""
        known = {FEATURES: shared_means(FEATURES, no_features), SOFT: shared_means(SOFT, no_outputs)}
        own = {OWN: private(holds="model")} if self.predicts == "local" else {}
        return {**super().slots, **own, **known, NOISE: scratch(no_features)}

    def check(self, task: Task) -> None:
        check_head(self.name, task)

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Training, then a look at what the trained model knows."""
        noise = (("mean", tuple(no_features(ctx)["mean"].shape)),)
        return (Phase(self.step), Phase(self.measure, "knowledge", slots=(), epochs=1, noise=noise))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss with its two terms."""
        features, soft = work[global_of(FEATURES)], work[global_of(SOFT)]

        def loss(trees: Slots) -> Scored:
            plain = ctx.task.loss(trees["params"], work["buffers"], batch)
            agree = divergence(soft, head_outputs(ctx.task, trees["params"], features["mean"]) / self.temperature)
            near = distance(plain.features, batch.y, batch.weight, features)
            return plain._replace(loss=plain.loss + self.lam * agree + self.gamma * near)

        return ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def measure(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add a batch to the own knowledge; the noise is that of the first batch."""
        out = ctx.task.forward(work["params"], work["buffers"], batch.x)
        values = {FEATURES: out.features, SOFT: (out.outputs / self.temperature).softmax(1)}
        knowledge = {slot: add_rows(work[slot], rows, batch.y, batch.weight) for slot, rows in values.items()}
        return {**work, **knowledge, NOISE: {**work[NOISE], **(ctx.noise if ctx.step == 0 else {})}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the model; send it and, of classes that are frequent enough, the knowledge."""
        own, noise = work[FEATURES], work[NOISE]["mean"]
        count = torch.where(own["count"] >= self.min_share * ctx.samples, own["count"], 0.0)
        means = {FEATURES: own["mean"] + self.sigma * noise, SOFT: work[SOFT]["mean"]}
        sent = {n: {"mean": torch.where((count > 0)[:, None], x, 0.0), "count": count} for n, x in means.items()}
        return {**(keep_model(work, OWN) if self.predicts == "local" else work), **sent}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model as trained, once there is one, or the global one."""
        own = self.predicts == "local" and not ctx.newcomer
        return model_in(work, OWN) if own else super().personal_model(ctx, work)
