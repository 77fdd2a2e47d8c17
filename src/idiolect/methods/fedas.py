"""FedAS: a received body is first aligned with the client's own features; informative clients weigh more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..contract import (
    About,
    Batch,
    ClientContext,
    Phase,
    Scored,
    ServerContext,
    Slots,
    Task,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.class_statistics import added, distance, empty, feature_size, require_classes, rows
from .fedper import PrivateHead

OWN = ("fedas.own", "fedas.own.buffers")
PROTOTYPES = "fedas.prototypes"
FISHER = "fedas.fisher"


@register("fedas")
@dataclass(frozen=True)
class FedAS(PrivateHead):
    r"""FedAS (Yang, Huang and Ye, CVPR 2024) keeps the head private and mends two inconsistencies. Within a client: the
    received body does not know the client's data as well as the own one of last time, so before training it is aligned
    with the own body's class means :math:`\bar h^c` (prototypes) of the client's data,

    .. math:: \min_{body} \frac{1}{n} \sum_l \frac{1}{d} \bigl\|f(x_l) - \bar h^{y_l}\bigr\|^2.

    Between clients: those that know more of their data weigh more. The weight is the trace of the Fisher information
    of the trained model, summed over the batches b of a pass,

    .. math:: F_i = \sum_b \|\nabla \ell_b(w_i)\|^2, \qquad body \leftarrow \sum_i \frac{F_i}{\sum_j F_j} body_i.

    Hand-worked: the prototypes of two classes are 1 and 3, the features of a sample of each 2 and 2: the loss is
    (1 + 1) / 2 = 1 and its slopes in the features 1 and -1. Clients with gradients (3, 4) and (0, 5), one batch each,
    have F = 25 each, so bodies 2 and 4 average to 3 whatever their sample counts.

    A client predicts with its own model, as it last trained it; one that has never trained, with the received body. In
    its first round there is nothing to align with. An unseen client trains its head.
    """

    about = About(
        "Bodies aligned with own class means, weighed by Fisher information",
        paper="yang2024fedas",
        reveals="the body and a number, the trace of the Fisher information",
        stays="the head and the class means of features",
    )
    identities: ClassVar[dict[str, str]] = {"fedas(layers=3)": "local"}

    align_epochs: int = option(1, min=0, help="passes of alignment before training")
    align_lr: float = option(0.01, above=0.0, help="rate of alignment")
    fisher: bool = option(True, help="weigh clients by Fisher information; false is the run's weighting")

    def check(self, task: Task) -> None:
        """Prototypes need classes and features."""
        super().check(task)
        require_classes(self.name, task)
        task.require_features(self.name)

    # -- server ----------------------------------------------------------------------------------

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean of the bodies by Fisher information."""
        if not self.fisher:
            return super().aggregate(ctx, server, uploads)
        weighed = {
            i: replace(each, slots={**each.slots, "weight": {"samples": each.slots[FISHER]["trace"]}})
            for i, each in uploads.items()
        }
        return super().aggregate(replace(ctx, weighting="samples"), server, weighed)

    # -- client ----------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """Beside the private head, a place for the own model."""
        return {**super().client_init(ctx), OWN[0]: ctx.initial["params"], OWN[1]: ctx.initial["buffers"]}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The received body under the own head; the own model; no prototypes yet."""
        work = {**super().begin(ctx, client, download), **{slot: client[slot] for slot in OWN}}
        means = empty(require_classes(self.name, ctx.task), feature_size(ctx.task), ctx.samples)
        return {**work, PROTOTYPES: means, FISHER: {"trace": torch.zeros_like(ctx.samples)}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Prototypes of the own model, alignment of the received body, training, Fisher information."""
        body = frozenset(ctx.task.names) - self.private(ctx.task)
        look = Phase("prototypes", slots=(), epochs=1)
        align = Phase("align", part=body, epochs=self.align_epochs, lr=self.align_lr)
        aligned = (look, align) if body and self.align_epochs and not ctx.newcomer else ()
        return (*aligned, Phase(), *((Phase("fisher", slots=(), epochs=1),) if self.fisher else ()))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One batch of one of the phases."""
        if ctx.phase.name == "prototypes":
            features = ctx.task.forward(work[OWN[0]], work[OWN[1]], batch.x).features
            return {**work, PROTOTYPES: added(work[PROTOTYPES], *rows(features, batch))}
        if ctx.phase.name == "align":
            return self.align(ctx, work, batch)
        if ctx.phase.name == "fisher":
            return self.inform(ctx, work, batch)
        return super().step(ctx, work, batch)

    def align(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the body towards the prototypes; the training log is about training."""

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees["params"], work["buffers"], batch.x, train=True)
            return Scored(distance(*rows(out.features, batch), work[PROTOTYPES]), *out)

        return {**ctx.descend(work, "params", ctx.grad(work, "params", batch, loss), batch), "log": work["log"]}

    def inform(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add the squared length of a batch's gradient."""

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(trees["params"], work["buffers"], batch, train=False)

        grad = ctx.grad(work, "params", batch, loss).tree
        return {**work, FISHER: {"trace": work[FISHER]["trace"] + tree.dot(grad, grad)}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the trained model; send the body and, where it counts, its Fisher information."""
        client, upload = super().end(ctx, client, work)
        if upload.slots and self.fisher:
            upload = replace(upload, slots={**upload.slots, FISHER: work[FISHER]})
        return {**client, OWN[0]: work["params"], OWN[1]: work["buffers"]}, upload

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The own model; a client that has never trained has none yet and uses what it is sent."""
        if ctx.newcomer:
            return super().view(ctx, client, download)
        return {"params": client[OWN[0]], "buffers": client[OWN[1]]}
