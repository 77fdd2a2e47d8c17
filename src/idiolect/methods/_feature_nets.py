"""Networks on the features, between a shared body and a private output layer; they are averaged like the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..context import Context, Grad, ServerContext
from ..method import Download, Method, Phase, Upload
from ..task import Batch, Output, Scored, Task
from ..tree import Slots, Tree
from ._head import check_head


@dataclass(frozen=True)
class FeatureNets(Method):
    """A method whose output layer is private, and whose clients share beside the body the slots that `beside` names.

    It says how it predicts once, in `forward`; an unseen client, and fine-tuning, train the model through that.
    """

    beside: ClassVar[tuple[str, ...]] = ()
    one_network: ClassVar[str] = "it works with the features of one network"

    def forward(self, ctx: Context, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """What the model and the slots beside it make of inputs."""
        raise NotImplementedError

    def features(self, ctx: Context, slots: Slots, x: Tensor, train: bool) -> Output:
        """The model's own forward pass; normalisation that the phase does not train stays as it is."""
        frozen = ctx.task.frozen(ctx.phase.part)
        return ctx.task.net.apply(slots["params"], slots["buffers"], x, train, frozen if train else frozenset())

    def private(self, task: Task) -> frozenset[str]:
        """The output layer."""
        return task.head()

    def check(self, task: Task) -> None:
        """There has to be an output layer on a feature vector."""
        check_head(self.name, task)

    # -- what is shared ------------------------------------------------------------------------------

    def first(self, ctx: ServerContext, slot: str) -> Tree:
        """What a shared slot starts from: the network of that name."""
        return ctx.nets[slot].params

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, and what is shared beside it."""
        return {**super().server_init(ctx), **{slot: self.first(ctx, slot) for slot in self.beside}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """All that is shared."""
        sent = super().download(ctx, server, ids)
        return sent._replace(shared={**sent.shared, **{slot: server[slot] for slot in self.beside}})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The weighted means of all that is shared."""
        after = super().aggregate(ctx, server, uploads)
        return {**after, **{slot: self.average(ctx, server[slot], uploads, slot) for slot in self.beside}}

    def assemble(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The client's model, and what is shared beside it."""
        return {**super().assemble(ctx, client, download), **{slot: download[slot] for slot in self.beside}}

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Send what is shared."""
        client, upload = super().end(ctx, client, work)
        beside = {slot: work[slot] for slot in self.beside}
        return client, Upload({**upload.slots, **beside, "weight": {"samples": ctx.samples}}, upload.masks)

    # -- training and prediction ---------------------------------------------------------------------

    def descend(self, ctx: Context, work: Slots, grad: Grad, batch: Batch, decay: float = 0.0) -> Slots:
        """An optimiser step on every slot that has a gradient, those beside the model with weight decay; the batch is
        logged once."""
        for slot, leaves in grad.slots.items():
            own = Grad({slot: leaves}, grad.scored)
            if slot == "params":
                work = ctx.descend(work, slot, own, batch)
            else:
                work = {**ctx.descend(work, slot, own.plus(work[slot], decay), batch), "log": work["log"]}
        return work

    def predict(self, ctx: Context, view: Slots, x: Tensor) -> Tensor:
        """The outputs of `forward`."""
        return self.forward(ctx, view, x).outputs

    def onboard(self, ctx: Context) -> Sequence[Phase]:
        """An unseen client trains its output layer, under all that is shared."""
        return (Phase("onboard", part=self.private(ctx.task)),)

    def tune(self, ctx: Context, view: Slots, batch: Batch) -> Slots:
        """A step of the model, through the networks beside it, which stay as they are."""
        if ctx.phase.name == "stats":
            return super().tune(ctx, view, batch)

        def loss(trees: Slots) -> Scored:
            out = self.forward(ctx, {**view, **trees}, batch.x, train=True)
            return Scored(ctx.task.score(out.outputs, batch), *out)

        return ctx.move(view, "params", ctx.grad(view, "params", batch, loss), ctx.rate)
