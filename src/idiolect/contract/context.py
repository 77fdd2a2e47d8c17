"""What every function of a method gets beside its slots: where it is (round, phase, step), the task, and
the two things methods never do themselves: differentiate (`grad`) and take optimiser steps (`descend`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core import tree
from ..core.randomness import generator
from ..core.tree import Slots, Tree
from ..task.network import Net
from ..task.optimizers import Optimizer
from ..task.task import Batch, Scored, Task
from .phase import Phase

if TYPE_CHECKING:
    from .method import Method

LossFn = Callable[[Slots], Scored]
Backend = Callable[[LossFn, Slots], tuple[Slots, Scored]]


def buffers_of(slot: str) -> str:
    """The slot that holds the buffers of the model in `slot`."""
    return "buffers" if slot == "params" else f"{slot}.buffers"


@dataclass(frozen=True)
class Grad:
    """Gradients slot by slot, and the loss and forward pass they came from."""

    slots: Slots
    scored: Scored

    @property
    def tree(self) -> Tree:
        """The gradient, where there is one slot only."""
        (only,) = self.slots.values()
        return only

    def plus(self, extra: Mapping[str, Tensor], scale: float | Tensor = 1.0) -> Grad:
        """The gradient of the one slot plus `scale * extra`; names that are not trained are left out."""
        ((slot, leaves),) = self.slots.items()
        return replace(self, slots={slot: tree.add(leaves, extra, scale)})


def autograd(loss: LossFn, leaves: Slots) -> tuple[Slots, Scored]:
    """The reference way to differentiate: plain `torch.autograd.grad`."""
    leaves = {slot: {n: leaf.detach().requires_grad_() for n, leaf in each.items()} for slot, each in leaves.items()}
    with torch.enable_grad():
        scored = loss(leaves)
    flat = [leaf for each in leaves.values() for leaf in each.values()]
    found = iter(torch.autograd.grad(scored.loss, flat, allow_unused=True, materialize_grads=True))
    grads = {slot: {name: next(found) for name in each} for slot, each in leaves.items()}
    loss_value, outputs, features, buffers = scored
    detached = Scored(loss_value.detach(), outputs.detach(), features.detach(), tree.map(torch.detach, buffers))
    return grads, detached


@dataclass
class Context:
    """The client side's context. Engines fill it in; methods read it.

    Attributes:
        method: the whole method, outermost wrapper first.
        task: the model as pure functions.
        nets: the method's extra networks by name (`Method.modules`).
        round, rounds: the current round, counted from 0 (below 0 during set-up), and rounds in all.
        index, variant: the client's position and its static variant (`Method.variant`).
        newcomer: whether the client trains for the first time.
        samples, counts: its training samples, and how many of each class, as tensors.
        phase, epoch, step: where training is; `step` is the batch within the epoch (in a phase that is counted
            in steps, `epoch` stays 0).
        noise: random tensors that the phase asked for.
    """

    method: Method
    task: Task
    nets: Mapping[str, Net]
    optimizer: Optimizer
    lr: float
    round: int
    rounds: int
    seed: int
    index: int = 0
    variant: Any = None
    newcomer: bool = True
    samples: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))
    norm_stats: str = "average"
    norm_affine: str = "shared"
    phase: Phase = field(default_factory=Phase)
    epoch: int = 0
    step: int = 0
    noise: Mapping[str, Tensor] = field(default_factory=dict)
    backend: Backend = autograd
    written: Callable[[str, Mapping[str, Tensor], Batch, frozenset[str] | None], Grad] | None = None

    @property
    def initial(self) -> Slots:
        """The common initial model: slots `params` and `buffers`."""
        return self.task.initial

    @property
    def rate(self) -> float:
        """The learning rate of this phase."""
        return self.lr if self.phase.lr is None else self.phase.lr

    def rng(self, stream: str) -> np.random.Generator:
        """Random numbers that server and clients share: they depend on (seed, round, stream) only."""
        return generator(self.seed, stream, self.round)

    def grad(
        self,
        work: Slots,
        slots: str | Sequence[str],
        batch: Batch,
        loss: LossFn | None = None,
        at: Mapping[str, Tensor] | None = None,
    ) -> Grad:
        """The gradient of a loss with respect to what the phase trains of some slots.

        Args:
            work: the working slots.
            slots: the slot, or slots, to differentiate with respect to.
            batch: the samples.
            loss: slots -> `Scored`; by default the task's loss of the model in the (one) slot.
            at: values to differentiate at instead of the slot's own.
        """
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        values = {slot: work[slot] if at is None else dict(at) for slot in names}
        leaves = {slot: self.trained(each) for slot, each in values.items()}
        if loss is None and self.written is not None:
            return self.written(names[0], values[names[0]], batch, self.phase.part)
        if loss is None:
            buffers, frozen = work.get(buffers_of(names[0]), work.get("buffers", {})), self.task.frozen(self.phase.part)

            def loss(trees: Slots) -> Scored:
                return self.task.loss(trees[names[0]], buffers, batch, frozen=frozen)

        grads, scored = self.backend(lambda part: loss({s: {**values[s], **part[s]} for s in names}), leaves)
        return Grad(grads, scored)

    def trained(self, leaves: Mapping[str, Tensor]) -> Tree:
        """What the phase trains of a tree: `Phase.part` of the model's parameters, all of any other tree."""
        part = self.phase.part
        return {n: leaf for n, leaf in leaves.items() if part is None or n in part or n not in self.task.net.params}

    def descend(self, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float | None = None) -> Slots:
        """One optimiser step on `slot`; wrappers watch or change it in `Method.update`."""
        return self.method.update(self, work, slot, grad, batch, self.rate if lr is None else lr)

    def move(self, work: Slots, slot: str, grad: Grad, lr: float, rates: Mapping[str, Tensor] | None = None) -> Slots:
        """The optimiser step itself: moves the slot and its optimiser state, and takes over its buffers."""
        prefix = f"{slot}:"
        state = {key.removeprefix(prefix): each for key, each in work.items() if key.startswith(prefix)}
        moved, state = self.optimizer.step(work[slot], grad.slots[slot], state, lr, rates)
        after = {**work, slot: moved, **{prefix + key: each for key, each in state.items()}}
        if buffers_of(slot) in work:
            after[buffers_of(slot)] = grad.scored.buffers
        return after

    def log(self, work: Slots, grad: Grad, batch: Batch) -> Slots:
        """Add a batch's loss to the training log, which costs no extra pass."""
        count = batch.weight.sum()
        sums = work["log"]
        return {
            **work,
            "log": {"loss": sums["loss"] + grad.scored.loss * count, "samples": sums["samples"] + count},
        }


@dataclass(frozen=True)
class ServerContext:
    """The server side's context: rounds, the task, all clients' opaque ids, shared randomness."""

    method: Method
    tasks: tuple[Task, ...]
    nets: Mapping[str, Net]
    clients: tuple[int, ...]
    round: int
    rounds: int
    seed: int
    participation: float = 1.0
    weighting: str = "samples"
    model_of: Mapping[int, int] = field(default_factory=dict)
    norm_stats: str = "average"
    norm_affine: str = "shared"

    @property
    def task(self) -> Task:
        """The task, or the first one where clients have different models."""
        return self.tasks[0]

    @property
    def initial(self) -> Slots:
        """The common initial model: slots `params` and `buffers`."""
        return self.task.initial

    def rng(self, stream: str) -> np.random.Generator:
        """Random numbers that depend on (seed, round, stream) only."""
        return generator(self.seed, stream, self.round)

    def weights(self, uploads: Mapping[int, Any]) -> list[float]:
        """The aggregation weights: each upload's sample count, or 1 each where the run says so."""
        if self.weighting == "uniform":
            return [1.0] * len(uploads)
        return [float(each.weight) for each in uploads.values()]
