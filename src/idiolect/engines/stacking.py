"""Many clients at once: their slots stacked along a first axis, and the method's code, written for one client, traced
once for all of them with `torch.func.vmap`. Equal to `client.train` one by one, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..contract.context import Context, LossFn
from ..contract.method import Download, Phase, Upload, overrides
from ..core import tree
from ..core.randomness import generator
from ..core.tree import Slots, Tree
from ..kernels import dense_of
from ..task.optimizers import SGD
from ..task.task import Batch, Scored
from .client import Outcome, Passes, after_training, batches, fresh_optimizer, order, passes, train
from .plan import Part, Plan, together

States = Mapping[int, Slots | None]
# Steps that are gathered and traced at once: enough to pay for the tracing, few enough to stay in the cache.
RUN = 16
_NO_RULE = (nn.RNNBase, nn.RNNCellBase)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def obstacle(plan: Plan) -> str:
    """Why a plan's clients cannot be traced at once; an empty string if they can."""
    if plan.method.loop_only:
        return f"{plan.method.name}: {plan.method.loop_only}"
    nets = [*(task.net for task in plan.tasks), *plan.nets.values()]
    for each in (module for net in nets for module in net.module.modules()):
        if isinstance(each, _NO_RULE):
            return f"the model has a {type(each).__name__}, for which PyTorch has no rule to trace it for many clients"
        if isinstance(each, _RANDOM):
            return f"the model has a {type(each).__name__}, whose random numbers would differ from the reference's"
    return ""


def functional_grad(loss: LossFn, leaves: Slots) -> tuple[Slots, Scored]:
    """Differentiate in a way that can be traced for many clients."""

    def value(part: Slots) -> tuple[Tensor, Scored]:
        scored = loss(part)
        return scored.loss, scored

    grads, scored = torch.func.grad(value, has_aux=True)(leaves)
    return grads, scored


@dataclass
class Member:
    """One client of a stack: its context, slots and the number of samples it has."""

    index: int
    ctx: Context
    state: Slots
    newcomer: bool
    samples: int


def train_stack(
    plan: Plan, round: int, states: States, download: Download, chunk: int
) -> Iterator[tuple[int, Outcome]]:
    """Run the clients' parts of a round, `chunk` of them at once where their shapes allow it."""
    for members in grouped(plan, round, states, download):
        idle = [
            each for each in members if not any(p.steps for phase, p in schedule(plan, each).items() if phase.slots)
        ]
        yield from ((each.index, Outcome(each.state, None)) for each in idle)
        busy = sorted((each for each in members if each not in idle), key=lambda each: (-each.samples, each.index))
        for at in range(0, len(busy), chunk):
            part = busy[at : at + chunk]
            if len(part) > 1:
                yield from Stack(plan, part, download).run()
            else:  # one alone is faster without a stack
                index = part[0].index
                yield index, train(plan, index, round, states[index], download.of(index))


def grouped(plan: Plan, round: int, states: States, download: Download) -> list[list[Member]]:
    """Clients whose slots have the same shapes and whose schedules are the same.

    Where a batch's statistics matter, padding would change them: then only clients of equal size go together.
    """
    nets = [*(task.net for task in plan.tasks), *plan.nets.values()]
    norm = any(isinstance(each, nn.modules.batchnorm._BatchNorm) for net in nets for each in net.module.modules())
    exact = norm or plan.method.min_batch > 1 or not all(task.per_sample for task in plan.tasks)
    groups: dict[Hashable, list[Member]] = {}
    for index in sorted(states):
        state = states[index]
        ctx = plan.context(index, round, newcomer=state is None)
        ctx.backend = functional_grad
        samples = int(ctx.samples)
        slots = plan.method.client_init(ctx) if state is None else state
        key = (
            id(ctx.task),
            ctx.variant,
            ctx.newcomer,
            tuple(plan.method.phases(ctx)),
            exact and samples,
            _shape(download.each.get(index, {})),
        )
        groups.setdefault(key, []).append(Member(index, ctx, slots, state is None, samples))
    return list(groups.values())


def _shape(slots: Slots) -> Hashable:
    return tuple((s, n, tuple(leaf.shape)) for s, leaves in slots.items() for n, leaf in leaves.items())


def schedule(plan: Plan, member: Member) -> dict[Phase, Passes]:
    """How one client passes over each phase's data."""
    phases = plan.method.phases(member.ctx)
    return {phase: passes(plan, phase, member.ctx.task, _length(plan, member, phase)) for phase in phases}


def _length(plan: Plan, member: Member, phase: Phase) -> int:
    return member.samples if phase.data == "train" else plan.part(member.index, phase.data).size


class Stack:
    """Some clients of one shape going through a round together."""

    def __init__(self, plan: Plan, members: Sequence[Member], download: Download) -> None:
        self.plan, self.members, self.ctx = plan, members, members[0].ctx
        self.shared = download.shared
        self.each = stacked([download.each.get(m.index, {}) for m in members])
        self.state = stacked([m.state for m in members])
        self.samples = torch.stack([m.ctx.samples for m in members])
        self.counts = torch.stack([m.ctx.counts for m in members])
        self.dense = dense_of(self.ctx.task)
        if self.dense is not None:
            self.ctx.written = self.dense.grad

    def run(self) -> Iterator[tuple[int, Outcome]]:
        """Begin, all phases, end; then one outcome per client."""
        method, steps = self.plan.method, [0] * len(self.members)
        work = self.traced(self._begin)(self.state, self.each)
        zero = torch.zeros(len(self.members), device=self.plan.device)
        work["log"] = {"loss": zero, "samples": zero}
        for phase in method.phases(self.ctx):
            self.ctx.phase, self.ctx.epoch, self.ctx.step = phase, 0, 0
            work = self.traced(self._enter)(work)
            plain = self.dense if is_plain(self.plan, phase) else None
            if plain is not None:
                work = {**work, "params": owned(work["params"]), "log": owned(work["log"])}
            for run in Feeder(self, phase).runs():
                if plain is not None:  # the largest clients come first, so that rows are always the first ones
                    plain.steps_(self.ctx, work, Batch(*run.drawn[0]))
                else:
                    steps_of_run = self.traced(partial(self._steps, run), run.rows, 1)
                    work = merged(work, steps_of_run(sliced(work, run.rows), run.drawn, run.noise), run.rows)
                for row in run.rows if phase.slots else ():
                    steps[row] += run.steps
        after, slots, masks = self.traced(self._end)(self.state, work)
        samples = work["log"]["samples"]
        loss = work["log"]["loss"] / samples
        for row, member in enumerate(self.members):
            upload = Upload(taken(slots, row), taken(masks, row))
            state = taken(after, row)
            scores = after_training(self.plan, member.ctx, state, taken(work, row))
            yield member.index, Outcome(state, upload, float(loss[row]), steps[row], int(samples[row]), scores)

    def _begin(self, ctx: Context, state: Slots, each: Slots) -> Slots:
        return self.plan.method.begin(ctx, state, {**self.shared, **each})

    def _enter(self, ctx: Context, work: Slots) -> Slots:
        work = self.plan.method.enter(ctx, work)
        return {**fresh_optimizer(ctx, ctx.phase, work), **work}

    def _steps(self, run: Run, ctx: Context, work: Slots, drawn: Any, noise: Tree) -> Slots:
        ctx.epoch = run.epoch
        for step in range(run.steps):
            ctx.step, ctx.noise = run.first + step, {name: leaf[step] for name, leaf in noise.items()}
            batch = [Batch(*(leaf[step] for leaf in leaves)) for leaves in drawn]
            work = self.plan.method.step(ctx, work, batch[0] if len(batch) == 1 else tuple(batch))  # type: ignore[arg-type]
        return work

    def _end(self, ctx: Context, state: Slots, work: Slots) -> tuple[Slots, Slots, Slots]:
        after, upload = self.plan.method.end(ctx, state, work)
        return after, upload.slots, upload.masks

    def traced(self, function: Callable[..., Any], rows: list[int] | None = None, axis: int = 0) -> Callable[..., Any]:
        """`function(ctx, slots, ...)` of one client, for all clients (or some rows of them) at once; what follows the
        slots has clients on `axis`."""
        samples, counts = (each if rows is None else _rows(each, rows) for each in (self.samples, self.counts))

        def one(samples: Tensor, counts: Tensor, *args: Any) -> Any:
            return function(replace(self.ctx, samples=samples, counts=counts), *args)

        return lambda slots, *rest: torch.func.vmap(one, (0, 0, 0, *(axis for _ in rest)))(
            samples, counts, slots, *rest
        )


class Run(NamedTuple):
    """Steps that the same clients take one after another: per draw inputs, targets and weights, and noise, each
    [steps, clients, ...]."""

    rows: list[int]
    epoch: int
    first: int
    steps: int
    drawn: list[tuple[Tensor, ...]]
    noise: Tree


class Feeder:
    """The batches of a phase for a stack of clients, short ones padded with samples of weight zero."""

    def __init__(self, stack: Stack, phase: Phase) -> None:
        self.stack, self.plan, self.phase, self.ctx = stack, stack.plan, phase, stack.ctx
        self.passes = [schedule(stack.plan, member)[phase] for member in stack.members]

    def runs(self) -> Iterator[Run]:
        """All steps of the phase, in runs during which the clients and the width of their batches stay the same."""
        if self.phase.steps is not None:
            yield from self._counted()
            return
        epochs = self.plan.local_epochs if self.phase.epochs is None else self.phase.epochs
        size, longest = self.passes[0].size, max(p.samples for p in self.passes)
        per_epoch = [p.per_epoch for p in self.passes]
        full = min(longest // size, max(per_epoch))  # the step after these is narrower
        ends = sorted({*per_epoch, full, *range(RUN, full, RUN)} - {0})
        for epoch in range(epochs):
            orders = [self._orders(draw, epoch) for draw in range(self.phase.draws)]
            noise = self._noise(epoch)
            for first, end in pairwise([0, *ends]):
                rows = [row for row, steps in enumerate(per_epoch) if steps >= end]
                places = slice(first * size, min(end * size, longest))
                drawn = [self._gather([parts[row] for row in rows], places, end - first) for parts in orders]
                yield Run(rows, epoch, first, end - first, drawn, noise(rows, range(first, end)))

    def _orders(self, draw: int, epoch: int) -> list[Part]:
        """Each client's samples in the order of one pass."""
        parts = []
        for member, each in zip(self.stack.members, self.passes, strict=True):
            part = self.plan.part(member.index, self.phase.data)
            member.ctx.phase = self.phase
            chosen = order(self.plan, member.ctx, part.size, each.samples, draw, epoch)
            parts.append(part._replace(positions=part.positions[chosen]))
        return parts

    def _gather(self, parts: Sequence[Part], places: slice, steps: int) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of some steps, each [steps, clients, batch, ...], so that the batches of a step
        lie side by side."""
        width = (places.stop - places.start) // steps
        filled = [_filled(part.positions[places], width * steps) for part in parts]
        cuts = torch.stack(filled).view(len(parts), steps, width).transpose(0, 1).flatten(0, 1)
        x, y = together([part._replace(positions=cut) for part, cut in zip([*parts] * steps, cuts, strict=True)])
        ends = torch.tensor([part.size for part in parts], device=self.plan.device).view(-1, 1)
        at = torch.arange(places.start, places.stop, device=self.plan.device).view(steps, 1, width)
        return *(leaf.view(steps, len(parts), width, *leaf.shape[1:]) for leaf in (x, y)), (at < ends).float()

    def _noise(self, epoch: int) -> Callable[[list[int], range], Tree]:
        if not self.phase.noise:
            return lambda rows, steps: {}
        size, longest = self.passes[0].size, max(p.samples for p in self.passes)
        generators = [
            generator(self.plan.seed, f"noise {self.phase.name}", self.ctx.round, m.index, epoch)
            for m in self.stack.members
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

    def _counted(self) -> Iterator[Run]:
        """Phases of a fixed number of steps: clients pass over their data at their own pace."""
        streams = []
        for member in self.stack.members:
            member.ctx.phase = self.phase
            streams.append(batches(self.plan, member.ctx, 0))
        for step in range(self.phase.steps or 0):
            found = [next(stream, None) for stream in streams]
            rows = [row for row, each in enumerate(found) if each is not None]
            drawn = [each for each in found if each is not None]
            noise = tree.stack([tree.stack([self.stack.members[row].ctx.noise for row in rows])])
            given = [each if self.phase.draws > 1 else (each,) for each in drawn]
            size = max(len(batch.x) for each in given for batch in each)
            columns = [[_padded(each[draw], size) for each in given] for draw in range(self.phase.draws)]
            parts = [tuple(torch.stack(leaf)[None] for leaf in zip(*column, strict=True)) for column in columns]
            yield Run(rows, 0, step, 1, parts, noise)


def _padded(batch: Batch, size: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.cat([batch.weight, batch.weight.new_zeros(size - len(batch.weight))])
    return _filled(batch.x, size), _filled(batch.y, size), weight


def _filled(leaf: Tensor, size: int) -> Tensor:
    """Rows up to `size`; what is added repeats a real row, which is harmless for any model, and has weight zero."""
    missing = size - len(leaf)
    if missing <= 0:
        return leaf[:size]
    added = leaf[:1].expand(missing, *leaf.shape[1:]) if len(leaf) else leaf.new_zeros(missing, *leaf.shape[1:])
    return torch.cat([leaf, added])


def stacked(all_slots: Sequence[Slots]) -> Slots:
    """Slots of several clients as one."""
    return {slot: tree.stack([slots[slot] for slots in all_slots]) for slot in all_slots[0]}


def sliced(slots: Slots, rows: list[int]) -> Slots:
    """Some rows of stacked slots."""
    return {slot: tree.map(lambda leaf: _rows(leaf, rows), leaves) for slot, leaves in slots.items()}


def _rows(leaf: Tensor, rows: list[int]) -> Tensor:
    return leaf if len(rows) == len(leaf) else leaf[rows]


def merged(before: Slots, after: Slots, rows: list[int]) -> Slots:
    """Stacked slots of which some rows have changed."""

    def put(new: Tensor, old: Tensor) -> Tensor:
        return new if len(new) == len(old) else old.index_copy(0, torch.tensor(rows, device=old.device), new)

    return {slot: tree.map(put, leaves, before[slot]) for slot, leaves in after.items()}


def owned(leaves: Tree) -> Tree:
    """A copy whose leaves may be changed in place."""
    return tree.map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), leaves)


def taken(slots: Slots, row: int) -> Slots:
    """One client's slots out of a stack."""
    return {slot: {n: leaf[row] for n, leaf in leaves.items()} for slot, leaves in slots.items()}


def fitting_chunk(plan: Plan, budget: int = 64 << 20) -> int:
    """How many clients to stack: as many as keep a stack of models within a few caches, at most 32."""
    size = 4 * sum(leaf.numel() for leaf in plan.tasks[0].net.params.values())
    return max(1, min(32, math.floor(budget / max(1, size))))


def is_plain(plan: Plan, phase: Phase) -> bool:
    """Whether every step of a phase is one of plain SGD on the model, over the training data."""
    usual = phase.slots == ("params",) and phase.data == "train" and phase.steps is None and phase.draws == 1
    return usual and plan.optimizer == SGD() and not any(overrides(plan.method, name) for name in ("step", "update"))
