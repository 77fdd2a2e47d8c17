"""One client's part of a round, written once: the reference engine, worker processes and clients on other machines all
run this."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from ..contract import ClientContext, Slots, Upload
from .client_evaluation import Score, score_model
from .phases import error_context, run_phases
from .plan import Plan
from .slots import first_client, gather, keep_and_send


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
    """Run one client's part of a round: prepare, its phases, finish. `state` is None for a newcomer."""
    ctx = plan.context(index, round, newcomer=state is None)
    method = plan.method
    client = first_client(ctx) if state is None else state
    with error_context(plan, ctx):
        work = method.prepare(ctx, gather(ctx, client, download))
        work["log"] = {"loss": torch.zeros((), device=plan.device), "samples": torch.zeros((), device=plan.device)}
        work, steps = run_phases(plan, ctx, method.phases(ctx), work)
        if steps == 0:
            return Outcome(client, None)
        log = work["log"]
        work = method.finish(ctx, work)
        after, upload = keep_and_send(ctx, client, work)
        scores = score_after_training(plan, ctx, work)
    samples = float(log["samples"])
    loss = float(log["loss"]) / samples if samples else math.nan
    return Outcome(after, upload, loss, steps, int(samples), scores)


def score_after_training(plan: Plan, ctx: ClientContext, work: Slots) -> list[Score]:
    """The scores right after local training, where they are asked for; set-up rounds have none."""
    if not plan.after_local or ctx.round < 0:
        return []
    trained = replace(ctx, newcomer=False, just_trained=True)
    return score_model(plan, trained, plan.method.personal_model(trained, work), "after_local")
