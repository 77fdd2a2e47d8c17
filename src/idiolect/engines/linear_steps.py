"""Steps that make sums: those of most methods turn parameters, and trees like them, into sums of such trees and of the
gradient, whatever else they look at. Such steps are found on symbols, and taken in place by the compiled steps of a
dense network, many of them one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract import Method
from ..contract.context import ClientContext
from ..contract.gradients import Grad, pick_trained
from ..core import tree
from ..core.tree import Slots, Tree
from ..kernels import Dense
from ..task.optimizers import SGD
from ..task.task import Batch, Scored
from .feeding import Run
from .recording import GRADIENT, LOSS, Leaf, LinearContext, Recording, with_gradients
from .symbols import make_symbol

Trace = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes of a function of one client's context and slots one of all clients'."""


class Place(int):
    """Where a factor that differs between clients stands in a list."""


class Linear(NamedTuple):
    """The first steps of a run, as far as they make sums.

    Attributes:
        steps, recording: how many they are, and what they do.
        losses: by what each gradient's loss is multiplied in the log.
        seen: the leaves that depend on outputs and features.
        known: other leaves that have changed, by slot and name.
        factors: the factors that differ between clients.
    """

    steps: int
    recording: Recording
    losses: dict[int, float | Place]
    seen: list[Leaf]
    known: list[tuple[Leaf, Tensor]]
    factors: list[Tensor]


def take_steps(dense: Dense, trace: Trace, ctx: ClientContext, work: Slots, run: Run) -> tuple[Slots, int]:
    """Take the first steps of a run in place, as far as they make sums: the slots after them, and how many they are.

    Args:
        dense: the network.
        trace: makes of a function of one client one of all clients of the run; what follows slots has them second.
        ctx: the phase's context.
        work: the working slots of the run's clients; what changes is copied first.
        run: the steps.
    """
    if not dense.accepts(run.drawn[0][0].flatten(3), work.get(ctx.phase.slots[0], {})):
        return work, 0
    found = know_plain(dense, ctx, work, run) if is_plain(ctx) else find_linear(dense, trace, ctx, work, run)
    recording = found.recording
    if not recording.gradients:
        return work, 0
    changed = recording.changed_slots
    after = {slot: dict(leaves) for slot, leaves in work.items()}
    after[recording.slot] = tree.map(copy_leaf, work[recording.slot])  # changed in place
    terms = (term for _, changes in recording.gradients for each in changes.values() for term in each)
    slots = [recording.slot, *sorted({*changed, *(term[0] for term in terms)} - {recording.slot, GRADIENT})]
    sizes = {name: leaf.numel() for name, leaf in recording.params.items()}
    others = join_slots(after, slots, sizes, len(run.rows))
    changes = write_changes(dense, found, slots, len(run.rows))
    batch_of = [step for step, _ in recording.gradients]
    trained = [name in recording.trained for name in dense.names]
    passed = dense.change_(after[recording.slot], others, Batch(*run.drawn[0]), batch_of, changes, trained)
    for slot, values in zip(slots[1:], others.unbind(1), strict=True):
        for name, part in cut(values, sizes).items() if slot in changed else ():
            if name in after[slot]:
                after[slot][name] = part.reshape(after[slot][name].shape)
    log = after["log"]["loss"].clone()
    for gradient, factor in found.losses.items():
        log += passed.loss[gradient] * (found.factors[factor] if isinstance(factor, Place) else factor)
    after["log"]["loss"] = log
    for (slot, name), leaf in found.known:
        after[slot][name] = leaf
    if found.seen:
        for (slot, name), leaf in look_on(trace, ctx, work, run, found, passed).items():
            after[slot][name] = leaf
    ctx.gradients.count(taken=len(batch_of), passes=0)
    return after, found.steps


def is_plain(ctx: ClientContext) -> bool:
    """Whether every step of a phase is one of plain SGD on the model, which need not be found out."""
    steps = getattr(ctx.phase.step, "__func__", None) is Method.step and ctx.method.optimizer_step is None
    return steps and ctx.training.optimizer == SGD() and not ctx.phase.noise


def know_plain(dense: Dense, ctx: ClientContext, work: Slots, run: Run) -> Linear:
    """What steps of plain SGD are."""
    recording = make_recording(dense, ctx, run)
    recording.slot, recording.trained = "params", set(pick_trained(ctx, recording.params))
    for step in range(run.steps):
        sums = {n: {("params", n): 1.0, (GRADIENT, n): -ctx.lr} for n in recording.params if n in recording.trained}
        recording.gradients.append((step, {("params", name): terms for name, terms in sums.items()}))
    counts = run.drawn[0][2].sum(2)
    known: list[tuple[Leaf, Tensor]] = [(("log", "samples"), work["log"]["samples"] + counts.sum(0))]
    return Linear(run.steps, recording, {step: Place(step) for step in range(run.steps)}, [], known, list(counts))


def make_recording(dense: Dense, ctx: ClientContext, run: Run) -> Recording:
    """A recording of nothing yet."""
    params, batch = {name: ctx.task.net.params[name] for name in dense.names}, run.drawn[0][1].shape[2]
    outputs, features = (torch.empty(batch, n) for n in params[dense.layers[-1].weight or ""].shape)
    return Recording(params, (outputs, features))


def find_linear(dense: Dense, trace: Trace, ctx: ClientContext, work: Slots, run: Run) -> Linear:
    """Carry out the first steps of a run on symbols, as far as they make sums."""
    (x, y, weight), found = run.drawn[0], list[Any]()
    inputs, targets = make_symbol(x[0, 0], None, ()), make_symbol(y[0, 0], None, ())

    def record(ctx: ClientContext, work: Slots, weight: Tensor, noise: Tree) -> Any:
        base, recording = with_gradients(ctx), make_recording(dense, ctx, run)
        after, steps, gradients = (start := recording.start(work)), 0, 0
        for number in range(run.steps):
            now = step_context(base, run, noise, number, partial(recording.take_gradient, number))
            batch = Batch(inputs, targets, weight[number])
            try:
                changed = ctx.phase.step(now, after, batch)
                recording.note_changes(changed)
                recording.check(start, changed)
            except Exception:  # whatever a step does with what has no values
                break
            after, steps, gradients = changed, number + 1, len(recording.gradients)
        del recording.gradients[gradients:]
        known, seen = recording.sort(start, after)
        factors, logged = list[Tensor](), getattr(after["log"]["loss"], "terms", {})
        losses = {term: place(factor, factors) for term, factor in logged.items() if term != LOSS}
        for terms in (terms for _, changes in recording.gradients for terms in changes.values()):
            terms.update({term: place(factor, factors) for term, factor in terms.items()})
        found.append((steps, recording, losses, list(seen), list(known)))
        return list(known.values()), factors, ctx.samples

    passes = ctx.task.net.passes
    leaves, factors, _ = trace(record)(work, weight, run.noise)
    ctx.task.net.passes = passes
    steps, recording, losses, seen, known = found[0]
    return Linear(steps, recording, losses, seen, list(zip(known, leaves, strict=True)), factors)


def look_on(
    trace: Trace, ctx: ClientContext, work: Slots, run: Run, found: Linear, passed: Scored
) -> dict[Leaf, Tensor]:
    """What steps that have been taken make of outputs and features: the leaves that depend on them."""
    gradients, hidden = found.recording.gradients, {*found.recording.changed_slots, "log"}

    def look(ctx: ClientContext, work: Slots, drawn: Any, noise: Tree, *scores: Tensor) -> list[Tensor]:
        base = with_gradients(ctx)
        known = [Scored(loss, x, h, {}) for loss, x, h in zip(*scores, strict=True)]
        now = {slot: tree.map(unknown, leaves) if slot in hidden else leaves for slot, leaves in work.items()}
        for number in range(found.steps):
            batch = Batch(*(leaf[number] for leaf in drawn))
            scored = iter([each for each, (step, _) in zip(known, gradients, strict=True) if step == number])
            now = ctx.phase.step(step_context(base, run, noise, number, partial(give, scored)), now, batch)
        return [now[slot][name] for slot, name in found.seen]

    return dict(zip(found.seen, trace(look)(work, run.drawn[0], run.noise, *passed[:3]), strict=True))


def give(scored: Any, ctx: ClientContext, work: Slots, slot: str, values: Tree) -> Grad:
    """A gradient without values, of which all else is known."""
    part = ctx.phase.part
    return Grad({slot: {n: unknown(leaf) for n, leaf in values.items() if part is None or n in part}}, next(scored))


def unknown(leaf: Tensor) -> Tensor:
    """A leaf whose values are not needed."""
    return make_symbol(leaf, None, {GRADIENT})


def step_context(base: LinearContext, run: Run, noise: Tree, number: int, give: Callable[..., Grad]) -> LinearContext:
    """The context of one step of a run."""
    noise_now = {name: leaf[number] for name, leaf in noise.items()}
    return replace(base, step=run.first + number, noise=noise_now, give=give)


def copy_leaf(leaf: Tensor) -> Tensor:
    """A copy that may be changed in place."""
    return leaf.clone(memory_format=torch.contiguous_format)


def place(factor: Any, factors: list[Tensor]) -> float | Place:
    """A factor or, if it differs between clients, its place among those."""
    if not isinstance(factor, Tensor):
        return float(factor)
    factors.append(factor)
    return Place(len(factors) - 1)


def write_changes(dense: Dense, found: Linear, slots: Sequence[str], clients: int) -> Any:
    """What the steps add to the slots as factors: [gradients, clients, parameters, slots, slots + 1], those of the
    gradient last."""
    gradients, states = found.recording.gradients, len(slots)
    changes = np.zeros((len(gradients), clients, len(dense.names), states, states + 1), np.float32)
    rows, columns = {name: at for at, name in enumerate(dense.names)}, {slot: at for at, slot in enumerate(slots)}
    factors = [factor.cpu().numpy() for factor in found.factors]
    for at, (_, changed) in enumerate(gradients):
        for (slot, name), terms in changed.items():
            target = changes[at, :, rows[name], columns[slot]]
            target[:, columns[slot]] = -1
            for (source, *_), factor in terms.items():
                value = factors[factor] if isinstance(factor, Place) else factor
                kept = source == slot  # what is added is all that goes beyond the leaf itself
                target[:, states if source == GRADIENT else columns[source]] = value - kept
    return changes


def join_slots(work: Slots, slots: Sequence[str], sizes: Mapping[str, int], clients: int) -> Tensor:
    """All slots but the first, which is a model, as rows of numbers, [clients, slots, all parameters]; what one has no
    value for is zero."""
    like, others = next(iter(work[slots[0]].values())), slots[1:]
    joined = like.new_zeros(clients, len(others), sum(sizes.values()))
    for row, slot in zip(joined.unbind(1), others, strict=True):
        for name, part in cut(row, sizes).items():
            if name in work[slot]:
                part.copy_(work[slot][name].flatten(1))
    return joined


def cut(row: Tensor, sizes: Mapping[str, int]) -> Tree:
    """Rows of numbers as the flat leaves of a slot."""
    return dict(zip(sizes, torch.split(row, list(sizes.values()), 1), strict=True))
