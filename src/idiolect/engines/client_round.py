"""One client's part of a round, written once: the reference engine, worker processes and clients on other machines all
run this."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from ..contract import ClientContext, Slots, Upload
from .client_evaluation import Score, score_model
from .effort import NO_EFFORT, Effort, read_effort
from .phases import error_context, run_phases
from .plan import Plan
from .slots import finish, first_client, gather
from .uploads import Report


@dataclass(frozen=True)
class Outcome:
    """What a client's part of a round gives. `upload` is None where it had no batch to train on, or where the engine
    keeps it and gives a `report` instead; `refused` says why the engine did not take what it sent, and `unstacked` why
    it was trained alone instead of in a stack."""

    state: Slots
    upload: Upload | None
    loss: float = math.nan
    steps: int = 0
    samples: int = 0
    scores: list[Score] = field(default_factory=list)
    effort: Effort = NO_EFFORT
    refused: str = ""
    unstacked: str = ""
    report: Report | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there was no batch to train on."""
        return self.upload is None and self.report is None


def train(plan: Plan, index: int, round: int, state: Slots | None, download: Slots) -> Outcome:
    """Run one client's part of a round: prepare, its phases, finish. `state` is None for a newcomer."""
    ctx = plan.context(index, round, newcomer=state is None)
    client = first_client(ctx) if state is None else state
    before = read_effort(ctx)
    with error_context(plan, ctx):
        work, steps = do_phases(plan, ctx, client, download)
        if steps == 0:
            return Outcome(client, None)
        log = work["log"]
        after, upload, finished = finish(ctx, client, work)
        effort = read_effort(ctx).since(before)
        scores = score_after_training(plan, ctx, finished)
    samples = float(log["samples"])
    loss = float(log["loss"]) / samples if samples else math.nan
    return Outcome(after, upload, loss, steps, int(samples), scores, effort)


def do_phases(plan: Plan, ctx: ClientContext, client: Slots, download: Slots) -> tuple[Slots, int]:
    """A client's working slots after its phases, and how many steps these took."""
    work = plan.method.prepare(ctx, gather(ctx, client, download))
    work["log"] = {"loss": torch.zeros((), device=plan.device), "samples": torch.zeros((), device=plan.device)}
    return run_phases(plan, ctx, plan.method.phases(ctx), work)


def train_model(plan: Plan, index: int, round: int, state: Slots | None, download: Slots) -> Slots:
    """The model that a client has right after its part of a round, which is otherwise forgotten."""
    ctx = plan.context(index, round, newcomer=state is None)
    client = first_client(ctx) if state is None else state
    with error_context(plan, ctx):
        work, _ = do_phases(plan, ctx, client, download)
        return plan.method.personal_model(replace(ctx, newcomer=False), finish(ctx, client, work)[2])


def score_after_training(plan: Plan, ctx: ClientContext, work: Slots) -> list[Score]:
    """The scores right after local training, where they are asked for; set-up rounds have none."""
    if not plan.after_local or ctx.round < 0:
        return []
    trained = replace(ctx, newcomer=False)
    with error_context(plan, ctx, "evaluation after training"):
        return score_model(plan, trained, plan.method.personal_model(trained, work), "after_local")
