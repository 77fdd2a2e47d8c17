"""One client's part of a round, and its evaluation, written once: the reference engine, worker processes
and clients on other machines all run this."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from ..method import Phase, Upload
from ..rng import generator, torch_seed
from ..task import Batch
from ..tree import Slots
from .plan import Plan

EVAL_BATCH = 1024


@dataclass(frozen=True)
class Score:
    """One number about one client: at which point, on which split, of how many samples."""

    point: str
    split: str
    metric: str
    value: float
    samples: int


@dataclass(frozen=True)
class Outcome:
    """What a client's part of a round gives; `upload` is None where it had no batch to train on."""

    state: Slots
    upload: Upload | None
    loss: float = math.nan
    steps: int = 0
    scores: list[Score] = field(default_factory=list)


def train(plan: Plan, index: int, round: int, state: Slots | None, download: Slots) -> Outcome:
    """Run one client's part of a round: begin, its phases, end. `state` is None for a newcomer."""
    ctx = plan.context(index, round, newcomer=state is None)
    method = plan.method
    client = method.client_init(ctx) if state is None else state
    with noted(plan, ctx):
        work = method.begin(ctx, client, download)
        work["log"] = {"loss": torch.zeros((), device=plan.device), "samples": torch.zeros((), device=plan.device)}
        work, steps = run_phases(plan, ctx, method.phases(ctx), work)
        if steps == 0:
            return Outcome(client, None)
        after, upload = method.end(ctx, client, work)
        scores = (
            evaluate_view(plan, ctx, method.after_local(ctx, after, work), "after_local") if plan.after_local else []
        )
    samples = float(work["log"]["samples"])
    loss = float(work["log"]["loss"]) / samples if samples else math.nan
    return Outcome(after, upload, loss, steps, scores)


def run_phases(plan: Plan, ctx: Context, phases: Sequence[Phase], work: Slots, tune: bool = False) -> tuple[Slots, int]:
    """Run phases on working slots (or, to tune, on a copy of a view); how many steps that took."""
    method, total = plan.method, 0
    for number, phase in enumerate(phases):
        ctx.phase, ctx.epoch, ctx.step = phase, 0, 0
        if not tune:
            work = method.enter(ctx, work)
        work = {**fresh_optimizer(ctx, phase, work), **work}
        for batch in batches(plan, ctx, number):
            work = method.tune(ctx, work, batch) if tune else method.step(ctx, work, batch)
            ctx.step += 1
        total += ctx.step
    return work, total


def fresh_optimizer(ctx: Context, phase: Phase, work: Slots) -> Slots:
    """The optimiser state of the slots that a phase trains."""
    return {f"{slot}:{key}": each for slot in phase.slots for key, each in ctx.optimizer.init(work[slot]).items()}


def batches(plan: Plan, ctx: Context, number: int) -> Iterator[Any]:
    """The batches of a phase, epoch by epoch; sets `ctx.epoch`, the noise and the seed of random layers."""
    phase = ctx.phase
    x, y = plan.split(ctx.index, phase.data)
    smallest = max(plan.method.min_batch, 2 if ctx.task.has_batchnorm else 1)
    size = phase.batch_size or plan.batch_size
    count = min(math.ceil(phase.share * len(x)), phase.samples or len(x))
    per_epoch = count // size + (count % size >= smallest)
    if per_epoch == 0:
        return
    steps = (
        phase.steps
        if phase.steps is not None
        else per_epoch * (plan.local_epochs if phase.epochs is None else phase.epochs)
    )
    # Public data come in one order for all clients, so that what they say of them can be compared.
    who = -1 if phase.data == "public" else ctx.index
    for step in range(steps):
        ctx.epoch, at = divmod(step, per_epoch)
        if at == 0:
            where = (ctx.round, who, ctx.epoch)
            orders = [order(plan, phase, len(x), count, draw, where) for draw in range(phase.draws)]
            torch.default_generator.manual_seed(torch_seed(plan.seed, "layers", number, *where))
            noise = generator(plan.seed, f"noise {phase.name}", ctx.round, ctx.index, ctx.epoch)
            shuffled = [(x[chosen], y[chosen]) for chosen in orders]
        cut = slice(at * size, min((at + 1) * size, count))
        drawn = [Batch(xs[cut], ys[cut], torch.ones(len(xs[cut]), device=xs.device)) for xs, ys in shuffled]
        shapes = {name: tuple(len(drawn[0].x) if n == -1 else n for n in shape) for name, shape in phase.noise}
        ctx.noise = {n: torch.from_numpy(noise.standard_normal(s, "float32")).to(x.device) for n, s in shapes.items()}
        yield drawn[0] if phase.draws == 1 else tuple(drawn)


def order(plan: Plan, phase: Phase, length: int, count: int, draw: int, where: tuple[int, ...]) -> Tensor:
    """The random order of one epoch: it depends on (seed, stream, round, client, epoch) alone."""
    stream = f"batches {phase.stream}" + (f" {draw}" if draw else "")
    return torch.from_numpy(generator(plan.seed, stream, *where).permutation(length)[:count])


# -- evaluation -------------------------------------------------------------------------------------


def evaluate(plan: Plan, index: int, round: int, state: Slots | None, download: Slots, unseen: bool) -> list[Score]:
    """All scores of one client: its view and, where the method tunes it, the tuned view."""
    ctx = plan.context(index, round, newcomer=state is None)
    method = plan.method
    with noted(plan, ctx):
        client = method.client_init(ctx) if state is None else state
        view = method.view(ctx, client, download)
        scores = evaluate_view(plan, ctx, view, "view")
        if tuned := tuned_view(plan, ctx, view, unseen):
            scores += evaluate_view(plan, ctx, tuned, "adapted")
        records = method.records(ctx, client) if state is not None else {}
    return scores + [Score("state", "", name, float(value), 0) for name, value in records.items()]


def tuned_view(plan: Plan, ctx: Context, view: Slots, unseen: bool) -> Slots | None:
    """The view after `onboard` (unseen clients) and `adapt`; None where the method tunes nothing."""
    phases = (*(plan.method.onboard(ctx) if unseen else ()), *plan.method.adapt(ctx))
    if not phases:
        return None
    tuned, _ = run_phases(plan, ctx, phases, dict(view), tune=True)
    return {slot: each for slot, each in tuned.items() if slot in view}


def evaluate_view(plan: Plan, ctx: Context, view: Slots, point: str) -> list[Score]:
    """Loss and metrics of a view on the client's validation and test data."""
    scores = []
    for split in ("val", "test"):
        x, y = plan.split(ctx.index, split)
        if len(x) == 0:
            continue
        outputs = predict(plan, ctx, view, x)
        loss = float(ctx.task.score(outputs, Batch(x, y, torch.ones(len(x), device=x.device))))
        values = {"loss": loss} | {name: metric(outputs, y) for name, metric in ctx.task.metrics.items()}
        scores += [Score(point, split, name, value, len(x)) for name, value in values.items()]
    return scores


def predict(plan: Plan, ctx: Context, view: Slots, x: Tensor) -> Tensor:
    """The outputs of a view on all of `x`, in the method's batches and in fixed order."""
    size = plan.method.eval_batch or EVAL_BATCH
    with torch.no_grad():
        return torch.cat([plan.method.predict(ctx, view, part) for part in torch.split(x, size)])


class noted:
    """Add to any error where it happened: client, round, phase and step."""

    def __init__(self, plan: Plan, ctx: Context) -> None:
        self.plan, self.ctx = plan, ctx

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            ctx, name = self.ctx, self.plan.data.clients[self.ctx.index].name
            where = f"phase {ctx.phase.name}, epoch {ctx.epoch}, step {ctx.step}"
            error.add_note(f"in {ctx.method.name}: client {name} ({ctx.index}), round {ctx.round + 1}, {where}")
