"""How models are scored, written once for all engines: each client's personal one, and the shared one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import ClientContext, Download, Phase, Slots, Task, has_one_model
from ..core.code import user_code
from ..core.errors import ModelError
from ..task.metrics import Metric
from .phases import error_context, run_phases
from .plan import Part, Plan, split_parts
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
    """All scores of one client: of its personal model and, if that is adapted before it predicts, of the adapted."""
    ctx = plan.context(index, round, newcomer=state is None)
    method = plan.method
    with error_context(plan, ctx, "evaluation"):
        client = first_client(ctx) if state is None else state
        model = method.personal_model(ctx, gather(ctx, client, download, training=False))
        scores = score_model(plan, ctx, model, "personal")
        if adapted := adapt_model(plan, ctx, model, unseen):
            scores += score_model(plan, ctx, adapted, "adapted")
        records = method.client_records(ctx, client) if state is not None else {}
    return scores + [Score("state", "", name, float(value), 0) for name, value in records.items()]


def adapt_model(plan: Plan, ctx: ClientContext, model: Slots, unseen: bool) -> Slots | None:
    """The personal model after `onboard` (clients that never take part) and `adapt`; None where nothing adapts it."""
    phases = find_adaptation(ctx, unseen)
    if not phases:
        return None
    adapted, _ = run_phases(plan, ctx, phases, dict(model))
    return {slot: value for slot, value in adapted.items() if slot in model}


def find_adaptation(ctx: ClientContext, unseen: bool) -> Sequence[Phase]:
    """The phases that a personal model goes through before it predicts."""
    return (*(ctx.method.onboard(ctx) if unseen else ()), *adapt_phases(ctx))


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
    own = unseen or any(states.values()) or any(map(download.each.get, ids))
    if not own and shares_model(plan, ids[0], round):
        with suppress(Exception):  # an error comes again for the client that it belongs to
            return list(evaluate_together(plan, ids, round, download).items())
    common = evaluate_global(plan, ids, round, download.shared)
    return [(i, evaluate(plan, i, round, states[i], download.of(i), unseen) + common[i]) for i in ids]


def evaluate_together(plan: Plan, ids: Sequence[int], round: int, download: Download) -> dict[int, list[Score]]:
    """Scores of clients that have never trained and predict with one and the same model, which is the shared one."""
    ctx = plan.context(ids[0], round)
    model = plan.method.personal_model(ctx, gather(ctx, {}, download.of(ids[0]), training=False))
    scores = score_together(plan, ids, lambda x: predict(plan, ctx, model, x), "personal", eval_batch(plan))
    if not plan.eval_global:
        return scores
    return {i: [*known, *(replace(score, point="global") for score in known)] for i, known in scores.items()}


def evaluate_global(plan: Plan, ids: Sequence[int], round: int, common: Slots) -> dict[int, list[Score]]:
    """Scores of the shared model itself, where they are asked for and there is such a model; `common` is what all
    clients get."""
    ctx = plan.context(ids[0], round)
    model = plan.method.global_model(ctx, common) if plan.eval_global else None
    if model is None:
        return {i: [] for i in ids}
    if len(ids) > 1:
        with suppress(Exception):  # an error comes again for the client that it belongs to
            return score_together(plan, ids, lambda x: predict_plainly(ctx.task, model, x), "global", EVAL_BATCH)
        return {i: evaluate_global(plan, [i], round, common)[i] for i in ids}
    with error_context(plan, ctx, "evaluation of the shared model"):
        return score_together(plan, ids, lambda x: predict_plainly(ctx.task, model, x), "global", EVAL_BATCH)


def score_together(
    plan: Plan, ids: Sequence[int], predict: Callable[[Tensor], Tensor], point: str, size: int
) -> dict[int, list[Score]]:
    """Scores of one model on the validation and test data of several clients, in common batches."""
    parts_of = {i: find_held_out(plan, i) for i in ids}
    parts = [part for splits in parts_of.values() for part in splits.values()]
    if not parts:
        return {i: [] for i in ids}
    outputs, y = predict_parts(parts, predict, size)
    sizes = [(split, part.size) for splits in parts_of.values() for split, part in splits.items()]
    scores = iter(score_outputs(plan.task_of(ids[0]), outputs, y, point, sizes))
    return {i: [score for _ in splits for score in next(scores)] for i, splits in parts_of.items()}


def shares_model(plan: Plan, index: int, round: int) -> bool:
    """Whether clients without slots of their own all predict with one and the same model."""
    ctx = plan.context(index, round)
    return has_one_model(plan.method) and len(plan.tasks) == 1 and not ctx.private_names and not adapt_phases(ctx)


def find_held_out(plan: Plan, index: int) -> dict[str, Part]:
    """A client's validation and test data, those that are not empty."""
    parts = {split: plan.part(index, split) for split in ("val", "test")}
    return {split: part for split, part in parts.items() if part.size}


def score_model(plan: Plan, ctx: ClientContext, model: Slots, point: str) -> list[Score]:
    """Loss and metrics of a personal model on the client's validation and test data."""
    scores = []
    for split, part in find_held_out(plan, ctx.index).items():
        outputs, y = predict_parts([part], lambda x: predict(plan, ctx, model, x), eval_batch(plan))
        scores += score_outputs(ctx.task, outputs, y, point, [(split, len(y))])[0]
    return scores


def score_outputs(
    task: Task, outputs: Tensor, y: Tensor, point: str, splits: Sequence[tuple[str, int]]
) -> list[list[Score]]:
    """Loss and metrics of outputs on several splits, of sizes as given, that lie one after another."""
    metrics = {"loss": Metric(task.loss_fn, each=task.per_sample), **task.metrics}
    sizes = [size for _, size in splits]
    values = {}
    for name, metric in metrics.items():
        with user_code(f"while computing {name}", ModelError):
            values[name] = metric.parts(outputs, y, sizes)
    return [
        [Score(point, split, name, numbers[at], size) for name, numbers in values.items()]
        for at, (split, size) in enumerate(splits)
    ]


def predict(plan: Plan, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
    """The outputs of a personal model on all of `x`, in the method's batches and in fixed order."""
    with torch.no_grad():
        return torch.cat([plan.method.predict(ctx, model, part) for part in torch.split(x, eval_batch(plan))])


def eval_batch(plan: Plan) -> int:
    """The samples that predict together."""
    return plan.method.needs.eval_batch or EVAL_BATCH


def predict_parts(parts: Sequence[Part], predict: Callable[[Tensor], Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Outputs and targets of several parts, of which so many samples at most are held at once."""
    pairs = [(predict(x), y) for x, y in split_parts(parts, size)]
    return torch.cat([outputs for outputs, _ in pairs]), torch.cat([y for _, y in pairs])


def predict_plainly(task: Task, model: Slots, x: Tensor) -> Tensor:
    """The outputs of the network with the weights of a model on all of `x`."""
    with torch.no_grad():
        parts = torch.split(x, EVAL_BATCH)
        return torch.cat([task.forward(model["params"], model["buffers"], part).outputs for part in parts])
