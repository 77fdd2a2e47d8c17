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

from ..contract import Method
from ..contract.context import ClientContext
from ..contract.gradients import Autograd, Grad, LossFn
from ..contract.messages import Download, Upload
from ..contract.phase import Phase
from ..core import tree
from ..core.randomness import generator
from ..core.tree import Slots, Tree
from ..kernels import Dense, dense_of
from ..task.optimizers import SGD
from ..task.task import Batch, Scored
from .client_round import Outcome, score_after_training, train
from .phases import Passes, batches, count_passes, draw_order, fresh_optimizer
from .plan import Part, Plan, join_parts
from .slots import first_client, gather, keep_and_send

States = Mapping[int, Slots | None]
# Steps that are gathered and traced at once: enough to pay for the tracing, few enough to stay in the cache.
RUN = 16
_NO_RULE = (nn.RNNBase, nn.RNNCellBase)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def why_not_stackable(plan: Plan) -> str:
    """Why a plan's clients cannot be traced at once; an empty string if they can."""
    if plan.method.refuses.stacking:
        return f"{plan.method.name}: {plan.method.refuses.stacking}"
    nets = [*(task.net for task in plan.tasks), *plan.nets.values()]
    for each in (module for net in nets for module in net.module.modules()):
        if isinstance(each, _NO_RULE):
            return f"the model has a {type(each).__name__}, for which PyTorch has no rule to trace it for many clients"
        if isinstance(each, _RANDOM):
            return f"the model has a {type(each).__name__}, whose random numbers would differ from the reference's"
    return ""


class Functional(Autograd):
    """Gradients that can be traced for many clients at once; of a small dense network by matrix products."""

    def __init__(self, dense: Dense | None = None) -> None:
        self.dense = dense

    def of_loss(self, loss: LossFn, leaves: Slots) -> tuple[Slots, Scored]:
        """The gradient of a loss by `torch.func.grad`."""

        def value(part: Slots) -> tuple[Tensor, Scored]:
            scored = loss(part)
            return scored.loss, scored

        grads, scored = torch.func.grad(value, has_aux=True)(leaves)
        return grads, scored

    def of_task(self, ctx: ClientContext, slot: str, params: Tree, buffers: Tree, batch: Batch) -> Grad:
        """The gradient of the task's own loss."""
        if self.dense is None:
            return super().of_task(ctx, slot, params, buffers, batch)
        return self.dense.grad(slot, params, batch, ctx.phase.part)


@dataclass
class Member:
    """One client of a stack: its context, slots and the number of samples it has."""

    index: int
    ctx: ClientContext
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
    exact = norm or plan.method.needs.min_batch > 1 or not all(task.per_sample for task in plan.tasks)
    groups: dict[Hashable, list[Member]] = {}
    for index in sorted(states):
        state = states[index]
        ctx = plan.context(index, round, newcomer=state is None)
        samples = int(ctx.samples)
        slots = first_client(ctx) if state is None else state
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
    return {phase: count_passes(plan, phase, member.ctx.task, _length(plan, member, phase)) for phase in phases}


def _length(plan: Plan, member: Member, phase: Phase) -> int:
    return member.samples if phase.data == "train" else plan.part(member.index, phase.data).size


class Stack:
    """Some clients of one shape going through a round together."""

    def __init__(self, plan: Plan, members: Sequence[Member], download: Download) -> None:
        self.plan, self.members = plan, members
        self.dense = dense_of(members[0].ctx.task)
        self.ctx = replace(members[0].ctx, gradients=Functional(self.dense))
        self.shared = download.shared
        self.each = stacked([download.each.get(m.index, {}) for m in members])
        self.state = stacked([m.state for m in members])
        self.samples = torch.stack([m.ctx.samples for m in members])
        self.class_counts = torch.stack([m.ctx.class_counts for m in members])

    def run(self) -> Iterator[tuple[int, Outcome]]:
        """Prepare, all phases, finish; then one outcome per client."""
        steps = [0] * len(self.members)
        work = self.trace(self._prepare)(self.state, self.each)
        zero = torch.zeros(len(self.members), device=self.plan.device)
        work["log"] = {"loss": zero, "samples": zero}
        for phase in self.plan.method.phases(self.ctx):
            ctx = replace(self.ctx, phase=phase)
            work = self.trace(self._before, ctx)(work)
            plain = self.dense if is_plain(self.plan, phase) else None
            if plain is not None:
                work = {**work, "params": owned(work["params"]), "log": owned(work["log"])}
            for run in Feeder(self, phase).runs():
                if plain is not None:  # the largest clients come first, so that rows are always the first ones
                    plain.steps_(work["params"], work["log"], Batch(*run.drawn[0]), phase.part, ctx.lr)
                else:
                    steps_of_run = self.trace(partial(self._steps, run), ctx, run.rows, 1)
                    work = merged(work, steps_of_run(sliced(work, run.rows), run.drawn, run.noise), run.rows)
                for row in run.rows if phase.slots else ():
                    steps[row] += run.steps
        after, slots, masks, finished = self.trace(self._finish)(self.state, work)
        samples = work["log"]["samples"]
        loss = work["log"]["loss"] / samples
        for row, member in enumerate(self.members):
            upload = Upload(taken(slots, row), taken(masks, row))
            scores = score_after_training(self.plan, member.ctx, taken(finished, row))
            yield (
                member.index,
                Outcome(taken(after, row), upload, float(loss[row]), steps[row], int(samples[row]), scores),
            )

    def _prepare(self, ctx: ClientContext, state: Slots, each: Slots) -> Slots:
        return self.plan.method.prepare(ctx, gather(ctx, state, {**self.shared, **each}))

    def _before(self, ctx: ClientContext, work: Slots) -> Slots:
        if ctx.phase.before is not None:
            work = ctx.phase.before(ctx, work)
        return {**fresh_optimizer(ctx, work), **work}

    def _steps(self, run: Run, ctx: ClientContext, work: Slots, drawn: Any, noise: Tree) -> Slots:
        for step in range(run.steps):
            noise_now = {name: leaf[step] for name, leaf in noise.items()}
            here = replace(ctx, epoch=run.epoch, step=run.first + step, noise=noise_now)
            batch = [Batch(*(leaf[step] for leaf in leaves)) for leaves in drawn]
            work = ctx.phase.step(here, work, batch[0] if len(batch) == 1 else tuple(batch))
        return work

    def _finish(self, ctx: ClientContext, state: Slots, work: Slots) -> tuple[Slots, Slots, Slots, Slots]:
        work = self.plan.method.finish(ctx, work)
        after, upload = keep_and_send(ctx, state, work)
        return after, upload.slots, upload.masks, work if self.plan.after_local else {}

    def trace(
        self,
        function: Callable[..., Any],
        ctx: ClientContext | None = None,
        rows: list[int] | None = None,
        axis: int = 0,
    ) -> Callable[..., Any]:
        """`function(ctx, slots, ...)` of one client, for all clients (or some rows of them) at once; what follows the
        slots has clients on `axis`."""
        here = self.ctx if ctx is None else ctx
        samples, counts = (leaf if rows is None else _rows(leaf, rows) for leaf in (self.samples, self.class_counts))

        def one(samples: Tensor, class_counts: Tensor, *args: Any) -> Any:
            return function(replace(here, samples=samples, class_counts=class_counts), *args)

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
        epochs = self.plan.training.epochs if self.phase.epochs is None else self.phase.epochs
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
            chosen = draw_order(replace(member.ctx, phase=self.phase), part.size, each.samples, draw, epoch)
            parts.append(part._replace(positions=part.positions[chosen]))
        return parts

    def _gather(self, parts: Sequence[Part], places: slice, steps: int) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of some steps, each [steps, clients, batch, ...], so that the batches of a step
        lie side by side."""
        width = (places.stop - places.start) // steps
        filled = [_filled(part.positions[places], width * steps) for part in parts]
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
            generator(self.plan.training.seed, f"noise {self.phase.name}", self.ctx.round, m.index, epoch)
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
        streams = [batches(self.plan, replace(member.ctx, phase=self.phase), 0) for member in self.stack.members]
        for step in range(self.phase.steps or 0):
            found = [next(stream, None) for stream in streams]
            rows = [row for row, each in enumerate(found) if each is not None]
            drawn = [batch for _, batch in filter(None, found)]
            noise = tree.stack([tree.stack([ctx.noise for ctx, _ in filter(None, found)])])
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


def fit_chunk(plan: Plan, budget: int = 64 << 20) -> int:
    """How many clients to stack: as many as keep a stack of models within a few caches, at most 32."""
    size = 4 * sum(leaf.numel() for leaf in plan.tasks[0].net.params.values())
    return max(1, min(32, math.floor(budget / max(1, size))))


def is_plain(plan: Plan, phase: Phase) -> bool:
    """Whether every step of a phase is one of plain SGD on the model, over the training data."""
    usual = phase.slots == ("params",) and phase.data == "train" and phase.steps is None and phase.draws == 1
    own_step = getattr(phase.step, "__func__", None) is not Method.step
    return usual and plan.training.optimizer == SGD() and not own_step and not plan.method.watches_steps
