"""The batches of a stack of clients: who takes which step, on which samples, short batches padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract.context import ClientContext
from ..contract.phase import Phase
from ..core import tree
from ..core.randomness import generator
from ..core.tree import Slots, Tree
from ..task.task import Batch
from .phases import Passes, batches, count_passes, draw_order, streams_of
from .plan import Part, Plan, join_parts, late_size

# Steps that are gathered and traced at once: enough to pay for the tracing, few enough to stay in the cache.
RUN = 16


@dataclass
class Member:
    """One client of a stack: its context, slots and the number of samples it has."""

    index: int
    ctx: ClientContext
    state: Slots
    newcomer: bool
    samples: int


def schedule(plan: Plan, member: Member) -> dict[Phase, Passes]:
    """How one client passes over each phase's data."""
    phases = plan.method.phases(member.ctx)
    return {phase: count_passes(plan, phase, member.ctx.task, _length(plan, member, phase)) for phase in phases}


def _length(plan: Plan, member: Member, phase: Phase) -> int:
    return member.samples if phase.data == "train" else plan.part(member.index, phase.data).size


class Run(NamedTuple):
    """Steps that the same clients take one after another: per stream inputs, targets and weights, and noise, each
    [steps, clients, ...]."""

    rows: list[int]
    first: int
    steps: int
    drawn: list[tuple[Tensor, ...]]
    noise: Tree

    def until(self, steps: int) -> Run:
        """The first steps alone."""
        return self._cut(self.first, slice(0, steps))

    def after(self, steps: int) -> Run:
        """What is left after some steps."""
        return self._cut(self.first + steps, slice(steps, None))

    def _cut(self, first: int, part: slice) -> Run:
        drawn = [tuple(leaf[part] for leaf in leaves) for leaves in self.drawn]
        noise = tree.map(lambda leaf: leaf[part], self.noise)
        return Run(self.rows, first, len(range(self.steps)[part]), drawn, noise)


class Feeder:
    """The batches of a phase for a stack of clients, short ones padded with samples of weight zero."""

    def __init__(self, plan: Plan, members: Sequence[Member], phase: Phase) -> None:
        self.plan, self.members, self.phase = plan, members, phase
        self.passes = [schedule(plan, member)[phase] for member in members]

    def first_step(self) -> Iterator[Run]:
        """The first step alone, to see whether it can be traced."""
        for run in islice(self.runs(), 1):
            drawn = [tuple(leaf[:1] for leaf in leaves) for leaves in run.drawn]
            yield run._replace(steps=1, drawn=drawn, noise=tree.map(lambda leaf: leaf[:1], run.noise))

    def runs(self) -> Iterator[Run]:
        """All steps of the phase, in runs during which the clients and the width of their batches stay the same."""
        if self.phase.steps is not None:
            yield from self._draw_fixed_steps()
            return
        epochs = self.plan.training.epochs if self.phase.epochs is None else self.phase.epochs
        size, longest = self.passes[0].size, max(p.samples for p in self.passes)
        per_epoch = [p.per_epoch for p in self.passes]
        full = min(longest // size, max(per_epoch))  # the step after these is narrower
        most = self._steps_at_once(size)
        ends = sorted({*per_epoch, full, *range(most, full, most)} - {0})
        for epoch in range(epochs):
            orders = [self._orders(stream, epoch) for stream in streams_of(self.phase)]
            noise = self._noise(epoch)
            for first, end in pairwise([0, *ends]):
                rows = [row for row, steps in enumerate(per_epoch) if steps >= end]
                places = slice(first * size, min(end * size, longest))
                drawn = [self._gather([parts[row] for row in rows], places, end - first) for parts in orders]
                yield Run(rows, first, end - first, drawn, noise(rows, range(first, end)))

    def _steps_at_once(self, size: int) -> int:
        """How many steps a run has: fewer where inputs that are read when they are needed would take much memory."""
        client = self.plan.data.clients[self.members[0].index]
        return max(1, min(RUN, late_size(client) // (size * len(self.members)))) if client.late else RUN

    def _orders(self, stream: str, epoch: int) -> list[Part]:
        """Each client's samples in the order of one pass."""
        parts = []
        for member, passes in zip(self.members, self.passes, strict=True):
            part = self.plan.passed(member.index, self.phase.data, member.ctx.round, epoch)
            chosen = draw_order(replace(member.ctx, phase=self.phase), part.size, passes.samples, stream, epoch)
            parts.append(part._replace(positions=part.positions[chosen]))
        return parts

    def _gather(self, parts: Sequence[Part], places: slice, steps: int) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of some steps, each [steps, clients, batch, ...], so that the batches of a step
        lie side by side."""
        width = (places.stop - places.start) // steps
        filled = [_fill_rows(part.positions[places], width * steps) for part in parts]
        cuts = torch.stack(filled).view(len(parts), steps, width).transpose(0, 1).flatten(0, 1)
        x, y = join_parts([part._replace(positions=cut) for part, cut in zip([*parts] * steps, cuts, strict=True)])
        ends = torch.tensor([part.size for part in parts], device=self.plan.device).view(-1, 1)
        at = torch.arange(places.start, places.stop, device=self.plan.device).view(steps, 1, width)
        return *(leaf.view(steps, len(parts), width, *leaf.shape[1:]) for leaf in (x, y)), (at < ends).float()

    def _noise(self, epoch: int) -> Callable[[list[int], range], Tree]:
        if not self.phase.noise:
            return lambda rows, steps: {}
        size, longest = self.passes[0].size, max(p.samples for p in self.passes)
        generators = [
            generator(self.plan.training.seed, f"noise {self.phase.name}", self.members[0].ctx.round, m.index, epoch)
            for m in self.members
        ]

        def one(row: int, step: int) -> Tree:
            left, noise = self.passes[row].samples - step * size, Tree()
            for name, shape in self.phase.noise:
                real = [min(size, left) if n == -1 else n for n in shape]
                drawn = torch.from_numpy(generators[row].standard_normal(real, "float32"))
                noise[name] = torch.zeros([min(size, longest - step * size) if n == -1 else n for n in shape])
                noise[name][tuple(slice(0, n) for n in real)] = drawn
            return noise

        def draw(rows: list[int], steps: range) -> Tree:
            drawn = tree.stack([tree.stack([one(row, step) for row in rows]) for step in steps])
            return tree.map(lambda leaf: leaf.to(self.plan.device), drawn)

        return draw

    def _draw_fixed_steps(self) -> Iterator[Run]:
        """Phases of a fixed number of steps: clients pass over their data at their own pace."""
        streams = [batches(self.plan, replace(member.ctx, phase=self.phase), 0) for member in self.members]
        for step in range(self.phase.steps or 0):
            next_steps = [next(stream, None) for stream in streams]
            rows = [row for row, next_step in enumerate(next_steps) if next_step is not None]
            drawn = [batch for _, batch in filter(None, next_steps)]
            noise = tree.stack([tree.stack([ctx.noise for ctx, _ in filter(None, next_steps)])])
            draws = [(batch,) if isinstance(self.phase.stream, str) else batch for batch in drawn]
            size = max(len(batch.x) for client_draws in draws for batch in client_draws)
            columns = [[_pad(batch, size) for batch in column] for column in zip(*draws, strict=True)]
            parts = [tuple(torch.stack(leaf)[None] for leaf in zip(*column, strict=True)) for column in columns]
            yield Run(rows, step, 1, parts, noise)


def _pad(batch: Batch, size: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.cat([batch.weight, batch.weight.new_zeros(size - len(batch.weight))])
    return _fill_rows(batch.x, size), _fill_rows(batch.y, size), weight


def _fill_rows(leaf: Tensor, size: int) -> Tensor:
    """Rows up to `size`; what is added repeats a real row, which is harmless for any model, and has weight zero."""
    missing = size - len(leaf)
    if missing <= 0:
        return leaf[:size]
    added = leaf[:1].expand(missing, *leaf.shape[1:]) if len(leaf) else leaf.new_zeros(missing, *leaf.shape[1:])
    return torch.cat([leaf, added])
