"""FedAS: a received body is first aligned with the client's own features; informative clients weigh more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ..contract import (
    About,
    Batch,
    ClientContext,
    Phase,
    Scored,
    Slot,
    Slots,
    Task,
    Tree,
    buffers_of,
    model_in,
    option,
    private,
    register,
    scratch,
    tree,
    zero,
)
from ..contract.parts.class_statistics import add_rows, distance, empty, feature_size, require_classes, rows
from ..contract.parts.private_layers import PrivateLayers, shared_names

OWN, PROTOTYPES, FISHER = "fedas.own", "fedas.prototypes", "fedas.fisher"


@register("fedas")
@dataclass(frozen=True)
class FedAS(PrivateLayers):
    r"""FedAS (Yang, Huang and Ye, CVPR 2024) keeps the head private and mends two inconsistencies. Within a client: the
    received body does not know the client's data as well as the own one of last time, so before training it is aligned
    with the own body's class means :math:`\bar h^c` (prototypes) of the client's data,

    .. math:: \min_{body} \frac{1}{n} \sum_l \frac{1}{d} \bigl\|f(x_l) - \bar h^{y_l}\bigr\|^2.

    Between clients: those that know more of their data weigh more. The weight is the trace of the Fisher information
    of the trained model, summed over the batches b of a pass,

    .. math:: F_i = \sum_b \|\nabla \ell_b(w_i)\|^2, \qquad body \leftarrow \sum_i \frac{F_i}{\sum_j F_j} body_i.

    Hand-worked: the prototypes of two classes are 1 and 3, the features of a sample of each 2 and 2: the loss is
    (1 + 1) / 2 = 1 and its gradients in the features 1 and -1. Clients with gradients (3, 4) and (0, 5), one batch
    each, have F = 25 each, so bodies 2 and 4 average to 3 whatever their sample counts.

    A client predicts with its own model, as it last trained it; one that has never trained, with the received body. In
    its first round there is nothing to align with. An unseen client trains its head. Run it: ``idiolect run fedas``.
    """

    about = About(
        "Bodies aligned with own class means, weighed by Fisher information",
        paper="yang2024fedas",
        reveals="the body and a number, the trace of the Fisher information",
        stays="the head and the class means of features",
    )
    identities: ClassVar[dict[str, str]] = {"fedas(layers=3)": "local"}

    align_epochs: int = option(1, min=0, help="passes of alignment before training")
    align_lr: float = option(0.01, above=0.0, help="learning rate of alignment")
    fisher: bool = option(True, help="weigh clients by Fisher information; false is the run's weighting")

    def check(self, task: Task) -> None:
        """Prototypes need classes and features."""
        super().check(task)
        require_classes(self.name, task)
        task.require_features(self.name)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, weighed by the Fisher information that each client sends; the own model and its class means."""
        own: dict[str, Slot] = {OWN: private(holds="model"), PROTOTYPES: scratch(self.no_means)}
        if not self.fisher:
            return {**super().slots, **own}
        model = replace(super().slots["params"], weigh=f"{FISHER}/trace")
        return {"params": model, **own, FISHER: Slot("round", zero("trace"), up="sum")}

    def no_means(self, ctx: ClientContext) -> Tree:
        """Class means before any batch."""
        return empty(require_classes(self.name, ctx.task), feature_size(ctx.task), ctx.samples)

    # -- client ----------------------------------------------------------------------------------

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Prototypes of the own model, alignment of the received body, training, Fisher information."""
        body = shared_names(self, ctx.task)
        alignment = (
            Phase(self.add_prototypes, "prototypes", slots=(), epochs=1),
            Phase(self.align, "align", part=body, epochs=self.align_epochs, lr=self.align_lr),
        )
        information = (Phase(self.add_information, "fisher", slots=(), epochs=1),)
        aligns = body and self.align_epochs and not ctx.newcomer
        return (*(alignment if aligns else ()), Phase(self.step), *(information if self.fisher else ()))

    def add_prototypes(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """The class means of the own model's features after one more batch."""
        own = model_in(work, OWN)
        features = ctx.task.forward(own["params"], own["buffers"], batch.x).features
        return {**work, PROTOTYPES: add_rows(work[PROTOTYPES], *rows(features, batch))}

    def align(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the body towards the prototypes; the training log is about training."""

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees["params"], work["buffers"], batch.x, train=True)
            return Scored(distance(*rows(out.features, batch), work[PROTOTYPES]), *out)

        return {**ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch), "log": work["log"]}

    def add_information(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add the squared length of a batch's gradient."""

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(trees["params"], work["buffers"], batch, train=False)

        grad = ctx.grad(work, "params", batch, loss).tree
        return {**work, FISHER: {"trace": work[FISHER]["trace"] + tree.dot(grad, grad)}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained model as the own one; without a shared layer no Fisher information is sent either."""
        own = {OWN: work["params"], buffers_of(OWN): work["buffers"]}
        sends = (work["params"].keys() | work["buffers"].keys()) - ctx.private_names
        return {**{slot: leaves for slot, leaves in work.items() if sends or slot != FISHER}, **own}

    # -- prediction ------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own model; a client that has never trained has none yet and uses what it got."""
        return super().personal_model(ctx, work) if ctx.newcomer else model_in(work, OWN)
