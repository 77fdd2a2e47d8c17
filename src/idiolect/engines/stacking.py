"""Many clients at once: their slots stacked along a first axis, and the method's code, written for one client, traced
once for all of them with `torch.func.vmap`. Equal to `client_round.train` one by one, up to rounding."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..contract.context import ClientContext
from ..contract.gradients import Autograd, Grad, LossFn
from ..contract.messages import Download, Upload
from ..core import tree
from ..core.tree import Slots, Tree
from ..kernels import Dense, find_dense
from ..task.task import Batch, Scored
from .client_round import Outcome, score_after_training, train
from .effort import NO_EFFORT, read_effort
from .feeding import Feeder, Member, Run, schedule
from .linear_steps import take_steps
from .phases import fresh_optimizer
from .plan import Plan
from .slots import finish, first_client, gather, kept_optimizer

States = Mapping[int, Slots | None]

FACTS = ("samples", "class_counts", "class_numbers")
"""What a client's context knows of its data, as tensors."""


def load_transforms() -> None:
    """Differentiate once within `torch.func`, for which PyTorch imports its compiler: two seconds, which workers that
    are forked afterwards need not spend."""
    torch.func.grad(torch.sum)(torch.zeros(1))


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

    def hessian_product(self, loss: Callable[[Tree], Tensor], leaves: Tree, vector: Tree) -> Tree:
        """The same by `torch.func.grad` twice; of a small dense network, too, whose matrix products have no second
        derivative."""

        def directional(at: Tree) -> Tensor:
            return tree.dot(torch.func.grad(loss)(at), vector)

        return torch.func.grad(directional)(leaves)  # type: ignore[no-any-return]


def train_stack(
    plan: Plan, round: int, states: States, download: Download, chunk: int
) -> Iterator[tuple[int, Outcome]]:
    """Run the clients' parts of a round, `chunk` of them at once where their shapes allow it."""
    for members in group_clients(plan, round, states, download):
        idle = [
            member
            for member in members
            if not any(p.steps for phase, p in schedule(plan, member).items() if phase.slots)
        ]
        yield from ((member.index, Outcome(member.state, None)) for member in idle)
        busy = sorted(
            (member for member in members if member not in idle), key=lambda member: (-member.samples, member.index)
        )
        waiting = [busy[at : at + chunk] for at in reversed(range(0, len(busy), chunk))]
        while waiting:
            part, problem = waiting.pop(), ""
            if len(part) > 1:  # one alone is faster without a stack
                try:
                    yield from list(Stack(plan, part, download).run())
                    continue
                except torch.cuda.OutOfMemoryError:  # stacks of half the size may fit
                    waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
                    continue
                except Exception as error:  # if it is not the stack's, it comes again, with the client's name
                    problem = explain(error)
            for index in (member.index for member in part):
                outcome = train(plan, index, round, states[index], download.of(index))
                yield index, replace(outcome, unstacked=problem)


def ignore_slow_operations() -> None:
    """Let PyTorch not warn of operations that it carries out client by client: what is slow, `auto` measures."""
    warnings.filterwarnings("ignore", message="There is a performance drop")


def explain(error: Exception) -> str:
    """Why clients cannot be traced at once, in one line.

    >>> explain(RuntimeError("vmap: called random operation while in randomness error mode"))
    "it draws random numbers, which would differ from the reference's"
    >>> {explain(RuntimeError(text)) for text in ("vmap: .item() is not supported", "data-dependent control flow")}
    {'it looks at the values of tensors, by .item() or an if'}
    >>> explain(RuntimeError("no rule for clone\\nsee above")), explain(RuntimeError())
    ('PyTorch cannot trace them at once: no rule for clone', 'PyTorch cannot trace them at once: RuntimeError')
    """
    text = str(error).strip()
    if "called random operation" in text:
        return "it draws random numbers, which would differ from the reference's"
    if ".item()" in text or "data-dependent" in text:
        return "it looks at the values of tensors, by .item() or an if"
    reason = textwrap.shorten(text.partition("\n")[0], 160) or type(error).__name__
    return f"PyTorch cannot trace them at once: {reason}"


def group_clients(plan: Plan, round: int, states: States, download: Download) -> list[list[Member]]:
    """Clients whose slots have the same shapes and whose schedules are the same.

    Where a batch's statistics matter, padding would change them: then only clients of equal size go together.
    """
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
            plan.mixes_samples and samples,
            _shape(download.each.get(index, {})),
            _shape(kept_optimizer(ctx, slots)),
        )
        groups.setdefault(key, []).append(Member(index, ctx, slots, state is None, samples))
    return list(groups.values())


def _shape(slots: Slots) -> Hashable:
    return tuple((s, n, tuple(leaf.shape)) for s, leaves in slots.items() for n, leaf in leaves.items())


class Stack:
    """Some clients of one shape going through a round together."""

    def __init__(self, plan: Plan, members: Sequence[Member], download: Download) -> None:
        self.plan, self.members = plan, members
        self.dense = find_dense(members[0].ctx.task)
        self.ctx = replace(members[0].ctx, gradients=Functional(self.dense))
        self.shared = download.shared
        self.per_client = stack_slots([download.each.get(m.index, {}) for m in members])
        self.state = stack_slots([m.state for m in members])
        self.facts = {name: torch.stack([getattr(m.ctx, name) for m in members]) for name in FACTS}
        self.tries = 0
        self.steps, self.efforts = [0] * len(members), [NO_EFFORT] * len(members)

    def run(self) -> Iterator[tuple[int, Outcome]]:
        """Prepare, all phases, finish; then one outcome per client."""
        work = self._train(Feeder.runs)
        with self._counted(range(len(self.members))):
            after, slots, masks, finished = self.trace(self._finish)(self.state, work)
        samples = work["log"]["samples"]
        loss = work["log"]["loss"] / samples
        for row, member in enumerate(self.members):
            upload = Upload(take_row(slots, row), take_row(masks, row))
            scores = score_after_training(self.plan, member.ctx, take_row(finished, row))
            counts = (float(loss[row]), self.steps[row], int(samples[row]))
            yield member.index, Outcome(take_row(after, row), upload, *counts, scores, self.efforts[row])

    def try_out(self) -> None:
        """Prepare, one step of each phase, finish; nothing is kept of it."""
        self.trace(self._finish)(self.state, self._train(Feeder.first_step))

    def _train(self, feed: Callable[[Feeder], Iterator[Run]]) -> Slots:
        """Prepare and all phases: the working slots after them."""
        everybody = range(len(self.members))
        with self._counted(everybody):
            work: Slots = self.trace(self._prepare)(self.state, self.per_client)
        zero = torch.zeros(len(self.members), device=self.plan.device)
        work["log"] = {"loss": zero, "samples": zero}
        for phase in self.plan.method.phases(self.ctx):
            ctx = replace(self.ctx, phase=phase)
            with self._counted(everybody):
                work = self.trace(self._before, ctx)(work)
            self.tries = 2 if self.dense is not None and phase.slots and isinstance(phase.stream, str) else 0
            for run in feed(Feeder(self.plan, self.members, phase)):
                with self._counted(run.rows, run.steps if phase.slots else 0):
                    work = merge_rows(work, self._take(run, ctx, slice_rows(work, run.rows)), run.rows)
        return work

    def _take(self, run: Run, ctx: ClientContext, work: Slots) -> Slots:
        """The steps of a run: in place where they can be, else traced; two that cannot are the last that are tried."""
        while run.steps:
            if self.dense is not None and self.tries:
                trace = partial(self.trace, ctx=ctx, rows=run.rows, axis=1)
                work, done = take_steps(self.dense, trace, ctx, work, run)
                self.tries, run = 2 if done else self.tries - 1, run.after(done)
            now = run.until(1 if self.tries else run.steps)
            if now.steps:
                work = self.trace(partial(self._steps, now), ctx, run.rows, 1)(work, now.drawn, now.noise)
                run = run.after(now.steps)
        return work

    @contextmanager
    def _counted(self, rows: Sequence[int], steps: int = 0) -> Iterator[None]:
        """Count what is done here for some clients, each of them."""
        before = read_effort(self.ctx)
        yield
        effort = read_effort(self.ctx).since(before)
        for row in rows:
            self.steps[row] += steps
            self.efforts[row] = self.efforts[row].plus(effort)

    def _prepare(self, ctx: ClientContext, state: Slots, per_client: Slots) -> Slots:
        return self.plan.method.prepare(ctx, gather(ctx, state, {**self.shared, **per_client}))

    def _before(self, ctx: ClientContext, work: Slots) -> Slots:
        if ctx.phase.before is not None:
            work = ctx.phase.before(ctx, work)
        return {**fresh_optimizer(ctx, work), **work}

    def _steps(self, run: Run, ctx: ClientContext, work: Slots, drawn: Any, noise: Tree) -> Slots:
        for step in range(run.steps):
            noise_now = {name: leaf[step] for name, leaf in noise.items()}
            step_ctx = replace(ctx, step=run.first + step, noise=noise_now)
            batch = [Batch(*(leaf[step] for leaf in leaves)) for leaves in drawn]
            work = ctx.phase.step(step_ctx, work, batch[0] if isinstance(ctx.phase.stream, str) else tuple(batch))
        return work

    def _finish(self, ctx: ClientContext, state: Slots, work: Slots) -> tuple[Slots, Slots, Slots, Slots]:
        after, upload, finished = finish(ctx, state, work)
        return after, upload.slots, upload.masks, finished if self.plan.after_local else {}

    def trace(
        self,
        function: Callable[..., Any],
        ctx: ClientContext | None = None,
        rows: list[int] | None = None,
        axis: int = 0,
    ) -> Callable[..., Any]:
        """`function(ctx, slots, ...)` of one client, for all clients (or some rows of them) at once; what follows the
        slots has clients on `axis`."""
        context = self.ctx if ctx is None else ctx
        facts = {name: leaf if rows is None else _rows(leaf, rows) for name, leaf in self.facts.items()}

        def one(facts: dict[str, Any], *args: Any) -> Any:
            return function(replace(context, **facts), *args)

        return lambda slots, *rest: torch.func.vmap(one, (0, 0, *(axis for _ in rest)))(facts, slots, *rest)


def stack_slots(all_slots: Sequence[Slots]) -> Slots:
    """Slots of several clients as one."""
    return {slot: tree.stack([slots[slot] for slots in all_slots]) for slot in all_slots[0]}


def slice_rows(slots: Slots, rows: list[int]) -> Slots:
    """Some rows of stacked slots."""
    return {slot: tree.map(lambda leaf: _rows(leaf, rows), leaves) for slot, leaves in slots.items()}


def _rows(leaf: Tensor, rows: list[int]) -> Tensor:
    return leaf if len(rows) == len(leaf) else leaf[rows]


def merge_rows(before: Slots, after: Slots, rows: list[int]) -> Slots:
    """Stacked slots of which some rows have changed."""

    def put(new: Tensor, old: Tensor) -> Tensor:
        return new if len(new) == len(old) else old.index_copy(0, torch.tensor(rows, device=old.device), new)

    return {slot: tree.map(put, leaves, before[slot]) for slot, leaves in after.items()}


def take_row(slots: Slots, row: int) -> Slots:
    """One client's slots out of a stack."""
    return {slot: {n: leaf[row] for n, leaf in leaves.items()} for slot, leaves in slots.items()}
