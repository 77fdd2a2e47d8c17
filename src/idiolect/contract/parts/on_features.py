"""What methods share that do something to the features before, or beside, the output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...core.tree import Slots, Tree
from ...task.network import Output
from ...task.task import Batch, Scored, Task
from ..about import Refuses
from ..context import ClientContext, RoundContext
from ..gradients import Grad
from ..method import Method
from ..slots import Init
from .heads import check_head


@dataclass(frozen=True)
class OnFeatures(Method):
    """A method that says how it predicts in `forward`, and what beside the loss it trains on in `penalty`; training,
    predictions, unseen clients and fine-tuning go through that."""

    refuses = Refuses(other_networks="it works with the features of one network")
    beside: ClassVar[tuple[str, ...]] = ()
    """The slots that predict beside the model; where `prepare` makes one of them, predicting prepares, too."""

    def check(self, task: Task) -> None:
        """There has to be an output layer on a feature vector."""
        check_head(self.name, task)

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The model's forward pass, with the outputs that the method makes of it."""
        raise NotImplementedError

    def model_output(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The model's own forward pass; normalisation that the phase does not train stays as it is."""
        frozen = ctx.task.frozen(ctx.phase.part) if train else frozenset[str]()
        return ctx.task.net.apply(slots["params"], slots["buffers"], x, train, frozen)

    def penalty(self, ctx: ClientContext, slots: Slots, out: Output, batch: Batch) -> Tensor | float:
        """What training adds to the loss of the outputs `out` of `forward` on a batch."""
        return 0.0

    def forward_grad(self, ctx: ClientContext, work: Slots, batch: Batch, penalty: bool = True) -> Grad:
        """The gradient, with respect to what the phase trains, of the loss of the outputs of `forward`, with or without
        the penalty."""

        def loss(trees: Slots) -> Scored:
            slots = {**work, **trees}
            out = self.forward(ctx, slots, batch.x, train=True)
            extra = self.penalty(ctx, slots, out, batch) if penalty else 0.0
            return Scored(ctx.task.score(out.outputs, batch) + extra, *out)

        return ctx.grad(work, ctx.phase.slots, batch, loss)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of what the phase trains, on the loss with its penalty."""
        return self.optimize_slots(ctx, work, self.forward_grad(ctx, work, batch), batch)

    def optimize_slots(
        self, ctx: ClientContext, work: Slots, grad: Grad, batch: Batch, lr: float | None = None
    ) -> Slots:
        """An optimiser step on every slot that has a gradient; the batch is logged once, with the model's step."""
        for slot, leaves in grad.slots.items():
            after = ctx.optimize(work, slot, Grad({slot: leaves}, grad.scored), batch, lr)
            work = after if slot == "params" else {**after, "log": work["log"]}
        return work

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model, and what predicts beside it."""
        ready = work if set(self.beside) <= work.keys() else self.prepare(ctx, work)
        return {**super().personal_model(ctx, ready), **{slot: ready[slot] for slot in self.beside}}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The outputs of `forward`."""
        return self.forward(ctx, model, x).outputs

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of what the phase trains, on the loss of the outputs of `forward`."""
        grad = self.forward_grad(ctx, model, batch, penalty=False)
        for slot, leaves in grad.slots.items():
            model = ctx.apply(model, slot, Grad({slot: leaves}, grad.scored))
        return model


def params_of(network: str) -> Init:
    """The first value of a slot: the initial parameters of one of the method's extra networks.

    >>> params_of("hyper").__name__
    'params'
    """

    def params(ctx: RoundContext) -> Tree:
        return ctx.nets[network].params

    return params
