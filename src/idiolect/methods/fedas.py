"""FedAS: a received body is first aligned with the client's own features; informative clients weigh more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..contract import About, Batch, ClientContext, Phase, Scored, Slots, Task, option, register, tree
from ..contract.parts.class_statistics import add_rows, distance, no_features, require_classes, rows
from ..contract.parts.private_layers import PrivateLayers, shared_names
from ..contract.slots import Slot, buffers_of, keep_model, model_in, private, scratch, zero

OWN, PROTOTYPES, FISHER = "fedas.own", "fedas.prototypes", "fedas.fisher"


@register("fedas")
@dataclass(frozen=True)
class FedAS(PrivateLayers):
    r"""FedAS (Yang, Huang and Ye, CVPR 2024) keeps the head private and mends two inconsistencies. Within a client,
    the received body is first aligned with the class means :math:`\bar h^c` (prototypes) of its own body of last time,

    .. math:: \min_{body} \frac{1}{n} \sum_l \frac{1}{d} \bigl\|f(x_l) - \bar h^{y_l}\bigr\|^2.

    Between clients, the weight is the trace of the Fisher information of the trained model, over batches b of a pass,

    .. math:: F_i = \sum_b \|\nabla \ell_b(w_i)\|^2, \qquad body \leftarrow \sum_i \frac{F_i}{\sum_j F_j} body_i.

    A client predicts with its own model, as it last trained it. Run it: ``idiolect run fedas``.
    """

    about = About(
        "Bodies aligned with class means, weighed by Fisher information",
        family="private layers",
        paper="yang2024fedas",
        reveals="the body and a number, the trace of the Fisher information",
        stays="the head and the class means of features",
    )
    identities = {"fedas(layers=3)": "local"}

    align_epochs: int = option(1, min=0, help="passes of alignment before training")
    align_lr: float = option(0.01, above=0.0, help="learning rate of alignment")
    fisher: bool = option(True, help="weigh clients by Fisher information; false is the run's weighting")

    def check(self, task: Task) -> None:
        super().check(task)
        require_classes(self.name, task)
        task.require_features(self.name)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, weighed by the Fisher information that each client sends; the own model and its class means."""
        personal: dict[str, Slot] = {OWN: private(holds="model"), PROTOTYPES: scratch(no_features)}
        if not self.fisher:
            return {**super().slots, **personal}
        model = replace(super().slots["params"], weigh=f"{FISHER}/trace")
        return {"params": model, **personal, FISHER: Slot("round", zero("trace"), up="sum")}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Prototypes of the own model, alignment of the received body, training, Fisher information."""
        body = shared_names(self, ctx.task)
        prototypes = Phase(self.add_prototypes, "prototypes", slots=(), epochs=1)
        align = Phase(self.align, "align", part=body, epochs=self.align_epochs, lr=self.align_lr)
        alignment = (prototypes, align) if body and self.align_epochs and not ctx.newcomer else ()
        information = (Phase(self.add_information, "fisher", slots=(), epochs=1),) if self.fisher else ()
        return (*alignment, Phase(self.step), *information)

    def add_prototypes(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """The class means of the own model's features after one more batch."""
        features = ctx.task.forward(work[OWN], work[buffers_of(OWN)], batch.x).features
        return {**work, PROTOTYPES: add_rows(work[PROTOTYPES], *rows(features, batch))}

    def align(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the body towards the prototypes; the training log is about training."""

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees["params"], work["buffers"], batch.x, train=True)
            return Scored(distance(*rows(out.features, batch), work[PROTOTYPES]), *out)

        return {**ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch), "log": work["log"]}

    def add_information(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add the squared length of a batch's gradient."""
        grad = ctx.grad(
            work, "params", batch, lambda slots: ctx.task.loss(slots["params"], work["buffers"], batch, train=False)
        ).tree
        return {**work, FISHER: {"trace": work[FISHER]["trace"] + tree.dot(grad, grad)}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained model as the own one; without a shared layer no Fisher information is sent either."""
        sends = (work["params"].keys() | work["buffers"].keys()) - ctx.private_names
        return tree.drop(keep_model(work, OWN), () if sends else {FISHER})

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        return super().personal_model(ctx, work) if ctx.newcomer else model_in(work, OWN)
