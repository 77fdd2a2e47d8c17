"""What every function of a method gets beside its slots: where it is (round, phase, step), the task, and the two things
methods never do themselves: differentiate (`grad`) and take optimiser steps (`optimize`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.randomness import generator
from ..core.tree import Slots, Tree
from ..task.network import Net
from ..task.task import Batch, Task
from .gradients import Autograd, Grad, LossFn, pick_trained
from .phase import NO_PHASE, Phase
from .slots import buffers_of
from .training import Training

if TYPE_CHECKING:
    from .method import Method

OptimizerStep = Callable[["ClientContext", Slots, str, Grad, Batch, float], Slots]
"""(ctx, work, slot, grad, batch, learning rate) -> work."""


@dataclass(frozen=True)
class RoundContext:
    """What server and clients both know in a round.

    Attributes:
        method: the whole method, outermost wrapper first.
        task: the model as pure functions; where clients have different networks, the client's (the server's first).
        nets: the method's extra networks by name (`Method.modules`).
        training: the run's training options.
        round, rounds: the current round, counted from 0 (below 0 during set-up), and rounds in all; a method that reads
            the latter says so in `Refuses.more_rounds`.
    """

    method: Method
    task: Task
    nets: Mapping[str, Net]
    training: Training
    round: int
    rounds: int

    @property
    def initial(self) -> Slots:
        """The common initial model: slots `params` and `buffers`."""
        return self.task.initial

    @property
    def norm_stats(self) -> str:
        """What becomes of running statistics: as the run says, or else the method."""
        return self.training.norm_stats or self.method.needs.norm_stats

    @cached_property
    def local_names(self) -> frozenset[str]:
        """The parameters and buffers that stay on the client by the run's policy for normalisation."""
        stats = frozenset(self.task.net.buffers) if self.norm_stats == "local" else frozenset[str]()
        return stats | self.task.norms if self.training.norm_affine == "local" else stats

    @cached_property
    def private_names(self) -> frozenset[str]:
        """The model's parameters and buffers that stay on the client: the method's, and the run's."""
        return self.method.private_names(self.task) | self.local_names

    def rng(self, stream: str) -> np.random.Generator:
        """Random numbers that server and clients share: they depend on (seed, round, stream) only."""
        return generator(self.training.seed, stream, self.round)


@dataclass(frozen=True)
class ClientContext(RoundContext):
    """The client's side. Client code is traced for many clients at once, so it must not branch on values of tensors.

    Attributes:
        index, variant: the client's position (never to be read in client code: in a stack it is the first member's) and
            its static variant (`Method.variant`).
        newcomer: whether the client has never trained.
        samples, class_counts: its training samples, and how many of each class, as tensors.
        class_numbers: where each client has its own labels, the number of each of its classes among those of all
            clients (`Task.all_classes` of them); else empty, and its labels are those numbers.
        phase, step: where training is; `step` is the batch within the epoch, or within a phase that is counted in
            steps.
        noise: random tensors that the phase asked for.
        gradients: how the engine differentiates.
    """

    index: int = 0
    variant: Any = None
    newcomer: bool = True
    samples: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    class_counts: Tensor = field(default_factory=lambda: torch.zeros(0))
    class_numbers: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    phase: Phase = NO_PHASE
    step: int = 0
    noise: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Autograd = field(default_factory=Autograd)

    @property
    def lr(self) -> float:
        """The learning rate of this phase in this round."""
        return self.scheduled(self.training.lr if self.phase.lr is None else self.phase.lr)

    def scheduled(self, lr: float | None) -> float:
        """A method's own learning rate in this round, under the run's schedule; None is the phase's."""
        if lr is None:
            return self.lr
        return lr * self.training.schedule.factor(max(self.round, 0), self.rounds)

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
        passes = self.task.net.passes
        if loss is None:
            (slot,) = names
            buffers = work.get(buffers_of(slot), work.get("buffers", {}))
            grad = self.gradients.of_task(self, slot, values[slot], buffers, batch)
        else:
            whole = partial(_complete, loss, values)
            parts = {slot: pick_trained(self, leaves) for slot, leaves in values.items()}
            grad = Grad(*self.gradients.of_loss(whole, parts))
        through = self.task.net.passes - passes
        self.gradients.count(1 if loss is None else through, through)
        return grad

    def hessian_product(self, work: Slots, slot: str, batch: Batch, vector: Mapping[str, Tensor]) -> Tree:
        """The Hessian of the task's loss of the model in `slot`, with respect to what the phase trains of it, times a
        vector; about as much work as two gradients."""
        params, frozen = work[slot], self.task.frozen(self.phase.part)
        buffers = work.get(buffers_of(slot), work.get("buffers", {}))

        def loss(part: Tree) -> Tensor:
            return self.task.loss({**params, **part}, buffers, batch, frozen=frozen).loss

        leaves = pick_trained(self, params)
        product = self.gradients.hessian_product(loss, leaves, {name: vector[name] for name in leaves})
        self.gradients.count(taken=2, passes=1)
        return product

    def optimize(
        self,
        work: Slots,
        slot: str,
        grad: Grad,
        batch: Batch,
        lr: float | None = None,
        through: Method | None = None,
    ) -> Slots:
        """One optimiser step on `slot`, with the loss logged, by `Method.optimizer_step` where there is one: the whole
        method's or, for a wrapper that passes a step on, that of the method `through` which it goes. A learning rate is
        the one of this round: see `scheduled`."""
        step, lr = (through or self.method).optimizer_step, self.lr if lr is None else lr
        if step is not None:
            return step(self, work, slot, grad, batch, lr)
        return self.log(self.apply(work, slot, grad, lr), grad, batch)

    def apply(self, work: Slots, slot: str, grad: Grad, lr: float | None = None) -> Slots:
        """The optimiser's arithmetic alone: changes the slot, its optimiser state and, of a model, the buffers."""
        prefix = f"{slot}:"
        state = {key.removeprefix(prefix): value for key, value in work.items() if key.startswith(prefix)}
        optimizer = self.training.optimizer
        values, state = optimizer.step(work[slot], grad.slots[slot], state, self.lr if lr is None else lr)
        after = {**work, slot: values, **{prefix + key: value for key, value in state.items()}}
        if buffers_of(slot) in work:
            after[buffers_of(slot)] = grad.scored.buffers
        return after

    def log(self, work: Slots, grad: Grad, batch: Batch) -> Slots:
        """Add a batch's loss to the training log, which costs no extra pass."""
        count, sums = batch.weight.sum(), work["log"]
        log = {"loss": sums["loss"] + grad.scored.loss * count, "samples": sums["samples"] + count}
        return {**work, "log": log}


@dataclass(frozen=True)
class ServerContext(RoundContext):
    """The server's side.

    Attributes:
        tasks: the model; several where clients have different networks.
        clients: the opaque ids of all clients that may take part.
        network_of: per client the position of its network in `tasks`; empty where there is one.
    """

    tasks: tuple[Task, ...] = ()
    clients: tuple[int, ...] = ()
    network_of: Mapping[int, int] = field(default_factory=dict)


def _complete(loss: LossFn, values: Slots, part: Slots) -> Any:
    """The loss of slots of which `part` is differentiated and the rest constant."""
    return loss({slot: {**leaves, **part[slot]} for slot, leaves in values.items()})
