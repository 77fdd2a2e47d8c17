"""One client's part of a round, and its evaluation, written once: the reference engine, worker processes
and clients on other machines all run this."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract.context import Context
from ..contract.method import Download, Phase, Upload, overrides
from ..core.randomness import generator, torch_seed
from ..core.tree import Slots
from ..task.metrics import Metric
from ..task.task import Batch, Task
from .plan import Part, Plan, together

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
    samples: int = 0
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
        scores = after_training(plan, ctx, after, work)
    samples = float(work["log"]["samples"])
    loss = float(work["log"]["loss"]) / samples if samples else math.nan
    return Outcome(after, upload, loss, steps, int(samples), scores)


def after_training(plan: Plan, ctx: Context, state: Slots, work: Slots) -> list[Score]:
    """The scores right after local training, where they are asked for; set-up rounds have none."""
    if not plan.after_local or ctx.round < 0:
        return []
    return evaluate_view(plan, ctx, plan.method.after_local(ctx, state, work), "after_local")


def run_phases(plan: Plan, ctx: Context, phases: Sequence[Phase], work: Slots, tune: bool = False) -> tuple[Slots, int]:
    """Run phases on working slots (or, to tune, on a copy of a view); how many steps of training that took."""
    method, total = plan.method, 0
    for number, phase in enumerate(phases):
        ctx.phase, ctx.epoch, ctx.step = phase, 0, 0
        if not tune:
            work = method.enter(ctx, work)
        work = {**fresh_optimizer(ctx, phase, work), **work}
        for batch in batches(plan, ctx, number):
            work = method.tune(ctx, work, batch) if tune else method.step(ctx, work, batch)
            total += bool(phase.slots)
    return work, total


def fresh_optimizer(ctx: Context, phase: Phase, work: Slots) -> Slots:
    """The optimiser state of the slots that a phase trains."""
    return {f"{slot}:{key}": each for slot in phase.slots for key, each in ctx.optimizer.init(work[slot]).items()}


class Passes(NamedTuple):
    """How one client passes over the data of a phase: samples and batch size, batches per pass, steps in all."""

    samples: int
    size: int
    per_epoch: int
    steps: int


def passes(plan: Plan, phase: Phase, task: Task, length: int) -> Passes:
    """The passes over `length` samples; a last batch that is too small to train on is dropped."""
    smallest = max(plan.method.min_batch, 2 if task.has_batchnorm else 1)
    size = phase.batch_size or plan.batch_size
    samples = min(math.ceil(phase.share * length), phase.samples or length)
    per_epoch = samples // size + (samples % size >= smallest)
    epochs = plan.local_epochs if phase.epochs is None else phase.epochs
    steps = per_epoch * epochs if phase.steps is None else phase.steps
    return Passes(samples, size, per_epoch, steps if per_epoch else 0)


def batches(plan: Plan, ctx: Context, number: int) -> Iterator[Any]:
    """The batches of a phase; sets `ctx.epoch` and `ctx.step`, the noise and the seed of random layers."""
    phase = ctx.phase
    part = plan.part(ctx.index, phase.data)
    samples, size, per_epoch, steps = passes(plan, phase, ctx.task, part.size)
    ones = torch.ones(min(size, samples), device=plan.device)
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        ctx.epoch, ctx.step = (epoch, at) if phase.steps is None else (0, step)
        if at == 0:
            orders = (order(plan, ctx, part.size, samples, draw, epoch) for draw in range(phase.draws))
            shuffled = [part.take(chosen) for chosen in orders]
            torch.default_generator.manual_seed(torch_seed(plan.seed, "layers", number, ctx.round, ctx.index, epoch))
            noise = generator(plan.seed, f"noise {phase.name}", ctx.round, ctx.index, epoch)
        cut = slice(at * size, min((at + 1) * size, samples))
        drawn = [Batch(xs[cut], ys[cut], ones[: cut.stop - cut.start]) for xs, ys in shuffled]
        ctx.noise = {
            name: torch.from_numpy(noise.standard_normal([len(drawn[0].x) if n == -1 else n for n in shape], "float32"))
            for name, shape in phase.noise
        }
        yield drawn[0] if phase.draws == 1 else tuple(drawn)


def order(plan: Plan, ctx: Context, length: int, samples: int, draw: int, epoch: int) -> Tensor:
    """The random order of one pass: it depends on (seed, stream, round, client, pass) alone.

    Public data come in one order for all clients, so that what they say of them can be compared.
    """
    stream = f"batches {ctx.phase.stream}" + (f" {draw}" if draw else "")
    who = -1 if ctx.phase.data == "public" else ctx.index
    round = ctx.round + ctx.phase.ahead
    return torch.from_numpy(generator(plan.seed, stream, round, who, epoch).permutation(length)[:samples])


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


def evaluate_group(
    plan: Plan, round: int, states: Mapping[int, Slots | None], download: Download, unseen: bool
) -> list[tuple[int, list[Score]]]:
    """Scores of several clients; where all would predict with one and the same model, in common batches."""
    ids = list(states)
    if unseen or any(states.values()) or any(map(download.each.get, ids)) or not has_shared_view(plan, ids[0], round):
        return [(i, evaluate(plan, i, round, states[i], download.of(i), unseen)) for i in ids]
    contexts = [plan.context(i, round, newcomer=states[i] is None) for i in ids]
    view = plan.method.view(contexts[0], {}, download.of(ids[0]))
    held = [held_out(plan, i) for i in ids]
    parts = [part for each in held for part in each.values()]
    if not parts:
        return [(i, []) for i in ids]
    x, y = together(parts)
    splits = [(split, part.size) for each in held for split, part in each.items()]
    found = iter(scores_of(contexts[0].task, predict(plan, contexts[0], view, x), y, "view", splits))
    return [(i, [score for _ in each for score in next(found)]) for i, each in zip(ids, held, strict=True)]


def has_shared_view(plan: Plan, index: int, round: int) -> bool:
    """Whether clients without own slots all predict with one and the same model."""
    own = any(overrides(plan.method, name) for name in ("view", "assemble", "predict", "records"))
    return not own and len(plan.tasks) == 1 and not plan.method.adapt(plan.context(index, round))


def held_out(plan: Plan, index: int) -> dict[str, Part]:
    """A client's validation and test data, those that are not empty."""
    parts = {split: plan.part(index, split) for split in ("val", "test")}
    return {split: part for split, part in parts.items() if part.size}


def evaluate_view(plan: Plan, ctx: Context, view: Slots, point: str) -> list[Score]:
    """Loss and metrics of a view on the client's validation and test data."""
    scores = []
    for split, part in held_out(plan, ctx.index).items():
        x, y = part.take()
        scores += scores_of(ctx.task, predict(plan, ctx, view, x), y, point, [(split, len(y))])[0]
    return scores


def scores_of(
    task: Task, outputs: Tensor, y: Tensor, point: str, splits: Sequence[tuple[str, int]]
) -> list[list[Score]]:
    """Loss and metrics of outputs on several splits, of sizes as given, that lie one after another."""
    metrics = {"loss": Metric(task.loss_fn, each=task.per_sample), **task.metrics}
    sizes = [size for _, size in splits]
    values = {name: metric.parts(outputs, y, sizes) for name, metric in metrics.items()}
    return [
        [Score(point, split, name, each[at], size) for name, each in values.items()]
        for at, (split, size) in enumerate(splits)
    ]


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
