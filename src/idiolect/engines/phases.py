"""The phases of a client's training, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract import Batch, ClientContext, Phase, Slots, Task
from ..core.randomness import generator, torch_seed
from .plan import Plan


def run_phases(plan: Plan, ctx: ClientContext, phases: Sequence[Phase], work: Slots) -> tuple[Slots, int]:
    """Run phases on working slots, or on a copy of a personal model; how many steps of training that took."""
    total = 0
    for number, phase in enumerate(phases):
        ctx = replace(ctx, phase=phase, step=0, noise={})
        with error_context(plan, ctx):
            if phase.before is not None:
                work = phase.before(ctx, work)
            work = {**fresh_optimizer(ctx, work), **work}
        for count, (step_ctx, batch) in enumerate(batches(plan, ctx, number), start=1):
            with error_context(plan, step_ctx, f"phase {phase.name}, batch {count}"):
                work = phase.step(step_ctx, work, batch)
            total += bool(phase.slots)
    return work, total


def fresh_optimizer(ctx: ClientContext, work: Slots) -> Slots:
    """The optimiser state of the slots that a phase trains."""
    optimizer = ctx.training.optimizer
    return {f"{slot}:{key}": value for slot in ctx.phase.slots for key, value in optimizer.init(work[slot]).items()}


class Passes(NamedTuple):
    """How one client passes over the data of a phase: samples and batch size, batches per pass, steps in all."""

    samples: int
    size: int
    per_epoch: int
    steps: int


def count_passes(plan: Plan, phase: Phase, task: Task, length: int) -> Passes:
    """The passes over `length` samples; a last batch that is too small to train on is dropped, but a phase that trains
    nothing looks at all samples."""
    smallest = max(plan.method.needs.min_batch, 2 if task.has_batchnorm else 1) if phase.slots else 1
    size, most = phase.batch_size or plan.training.batch_size, phase.samples
    samples = math.ceil(most * length) if isinstance(most, float) else min(length, most or length)
    per_epoch = samples // size + (samples % size >= smallest)
    epochs = plan.training.epochs if phase.epochs is None else phase.epochs
    steps = per_epoch * epochs if phase.steps is None else phase.steps
    return Passes(samples, size, per_epoch, steps if per_epoch else 0)


def batches(plan: Plan, ctx: ClientContext, number: int) -> Iterator[tuple[ClientContext, Any]]:
    """The batches of a phase, each with a context that knows step and noise; seeds random layers."""
    phase, seed = ctx.phase, plan.training.seed
    part = plan.part(ctx.index, phase.data)
    samples, size, per_epoch, steps = count_passes(plan, phase, ctx.task, part.size)
    ones = torch.ones(min(size, samples), device=plan.device)
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        if at == 0:
            orders = (draw_order(ctx, part.size, samples, stream, epoch) for stream in streams_of(phase))
            part = plan.passed(ctx.index, phase.data, ctx.round, epoch)
            cutters = [part.cutter(chosen) for chosen in orders]
            torch.default_generator.manual_seed(torch_seed(seed, "layers", number, ctx.round, ctx.index, epoch))
            random = generator(seed, f"noise {phase.name}", ctx.round, ctx.index, epoch)
        cut = slice(at * size, min((at + 1) * size, samples))
        drawn = [Batch(*cutter(cut), ones[: cut.stop - cut.start]) for cutter in cutters]
        shapes = {name: [len(drawn[0].x) if n == -1 else n for n in shape] for name, shape in phase.noise}
        drawn_noise = {name: random.standard_normal(dims, "float32") for name, dims in shapes.items()}
        noise = {name: torch.from_numpy(values).to(plan.device) for name, values in drawn_noise.items()}
        step_ctx = replace(ctx, step=at if phase.steps is None else step, noise=noise)
        yield step_ctx, drawn[0] if isinstance(phase.stream, str) else tuple(drawn)


def streams_of(phase: Phase) -> tuple[str, ...]:
    """The random orders of a phase: one, or several whose batches come together."""
    return (phase.stream,) if isinstance(phase.stream, str) else phase.stream


def draw_order(ctx: ClientContext, length: int, samples: int, stream: str, epoch: int) -> Tensor:
    """The random order of one pass: it depends on (seed, stream, round, client, pass) alone.

    Public data come in one order for all clients, so that their outputs on them can be compared.
    """
    who = ctx.index if ctx.phase.data in ("train", "holdout") else -1
    round = ctx.round + (ctx.phase.data == "next public")
    order = generator(ctx.training.seed, f"batches {stream}", round, who, epoch).permutation(length)
    return torch.from_numpy(order[:samples])


class error_context:
    """Add to any error where it happened: client, round, and the phase, or what else was done."""

    def __init__(self, plan: Plan, ctx: ClientContext, doing: str = "") -> None:
        self.plan, self.ctx, self.doing = plan, ctx, doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or any(note.startswith("in ") for note in getattr(error, "__notes__", ())):
            return
        ctx, name = self.ctx, self.plan.data.clients[self.ctx.index].name
        where = self.doing or f"phase {ctx.phase.name}"
        error.add_note(f"in {ctx.method.name}: client {name} ({ctx.index}), round {ctx.round + 1}, {where}")
