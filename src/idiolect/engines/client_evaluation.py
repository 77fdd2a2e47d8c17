"""How one client's personal model is scored, written once for all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import ClientContext, Download, Phase, Slots, Task
from ..task.metrics import Metric
from .phases import error_context, run_phases
from .plan import Part, Plan, join_parts
from .slots import first_client, gather

EVAL_BATCH = 1024


@dataclass(frozen=True)
class Score:
    """One number about one client: at which point, on which split, of how many samples."""

    point: str
    split: str
    metric: str
    value: float
    samples: int


def evaluate(plan: Plan, index: int, round: int, state: Slots | None, download: Slots, unseen: bool) -> list[Score]:
    """All scores of one client: of its personal model and, where that is adapted before it predicts, of that."""
    ctx = plan.context(index, round, newcomer=state is None)
    method = plan.method
    with error_context(plan, ctx):
        client = first_client(ctx) if state is None else state
        model = method.personal_model(ctx, gather(ctx, client, download, training=False))
        scores = score_model(plan, ctx, model, "view")
        if adapted := adapt_model(plan, ctx, model, unseen):
            scores += score_model(plan, ctx, adapted, "adapted")
        records = method.client_records(ctx, client) if state is not None else {}
    return scores + [Score("state", "", name, float(value), 0) for name, value in records.items()]


def adapt_model(plan: Plan, ctx: ClientContext, model: Slots, unseen: bool) -> Slots | None:
    """The personal model after `onboard` (clients that never take part) and `adapt`; None where nothing adapts it."""
    phases = (*(plan.method.onboard(ctx) if unseen else ()), *adapt_phases(ctx))
    if not phases:
        return None
    adapted, _ = run_phases(plan, ctx, phases, dict(model))
    return {slot: value for slot, value in adapted.items() if slot in model}


def adapt_phases(ctx: ClientContext) -> Sequence[Phase]:
    """What happens to a personal model before it predicts: running statistics where they are recomputed, then what the
    method does."""
    anew = ctx.norm_stats == "recompute" and ctx.task.stat_momentum
    statistics = (Phase(ctx.method.recompute_statistics, "stats", slots=(), epochs=1),) if anew else ()
    return (*statistics, *ctx.method.adapt(ctx))


def evaluate_group(
    plan: Plan, round: int, states: Mapping[int, Slots | None], download: Download, unseen: bool
) -> list[tuple[int, list[Score]]]:
    """Scores of several clients; where all predict with one and the same model, in common batches."""
    ids = list(states)
    if unseen or any(states.values()) or any(map(download.each.get, ids)) or not shares_model(plan, ids[0], round):
        return [(i, evaluate(plan, i, round, states[i], download.of(i), unseen)) for i in ids]
    contexts = [plan.context(i, round, newcomer=states[i] is None) for i in ids]
    ctx = contexts[0]
    model = plan.method.personal_model(ctx, gather(ctx, {}, download.of(ids[0]), training=False))
    parts_of = [held_out(plan, i) for i in ids]
    parts = [part for splits in parts_of for part in splits.values()]
    if not parts:
        return [(i, []) for i in ids]
    x, y = join_parts(parts)
    sizes = [(split, part.size) for splits in parts_of for split, part in splits.items()]
    scores = iter(score_outputs(ctx.task, predict(plan, ctx, model, x), y, "view", sizes))
    return [(i, [score for _ in splits for score in next(scores)]) for i, splits in zip(ids, parts_of, strict=True)]


def shares_model(plan: Plan, index: int, round: int) -> bool:
    """Whether clients without slots of their own all predict with one and the same model."""
    ctx = plan.context(index, round)
    return plan.method.one_model and len(plan.tasks) == 1 and not ctx.private_names and not adapt_phases(ctx)


def held_out(plan: Plan, index: int) -> dict[str, Part]:
    """A client's validation and test data, those that are not empty."""
    parts = {split: plan.part(index, split) for split in ("val", "test")}
    return {split: part for split, part in parts.items() if part.size}


def score_model(plan: Plan, ctx: ClientContext, model: Slots, point: str) -> list[Score]:
    """Loss and metrics of a personal model on the client's validation and test data."""
    scores = []
    for split, part in held_out(plan, ctx.index).items():
        x, y = part.take()
        scores += score_outputs(ctx.task, predict(plan, ctx, model, x), y, point, [(split, len(y))])[0]
    return scores


def score_outputs(
    task: Task, outputs: Tensor, y: Tensor, point: str, splits: Sequence[tuple[str, int]]
) -> list[list[Score]]:
    """Loss and metrics of outputs on several splits, of sizes as given, that lie one after another."""
    metrics = {"loss": Metric(task.loss_fn, each=task.per_sample), **task.metrics}
    sizes = [size for _, size in splits]
    values = {name: metric.parts(outputs, y, sizes) for name, metric in metrics.items()}
    return [
        [Score(point, split, name, numbers[at], size) for name, numbers in values.items()]
        for at, (split, size) in enumerate(splits)
    ]


def predict(plan: Plan, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
    """The outputs of a personal model on all of `x`, in the method's batches and in fixed order."""
    size = plan.method.needs.eval_batch or EVAL_BATCH
    with torch.no_grad():
        return torch.cat([plan.method.predict(ctx, model, part) for part in torch.split(x, size)])
