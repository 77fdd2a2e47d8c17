"""What clients report in numbers: of their training and of their scores. Only declared names are read, once each,
within their ranges and for as many samples as the client had when it joined. Every check raises `InputError`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from ..contract import Download
from ..core.errors import InputError
from ..engines import Plan
from ..engines.client_evaluation import Score
from ..engines.client_round import train
from ..engines.effort import Effort
from ..engines.phases import count_passes
from .messages import Message

MAX_TRAINED_SAMPLES = 2**40
MAX_GRADIENTS = 10_000
"""Of one step."""
LARGEST = torch.finfo(torch.float32).max
"""The largest loss or record of a client that can be."""
ROUNDING = 1e-9
SCORE = [str, str, str, float, int]
"""The types of a score's parts, as JSON gives them."""


class Range(NamedTuple):
    """Between which values a score lies, and of how many samples it is."""

    low: float
    high: float
    samples: int


def read_effort(reply: Message, steps: int) -> Effort:
    """Read the gradients and forward passes that a client reports for so many steps."""
    effort, most = Effort(reply.get("gradients", int), reply.get("passes", int)), MAX_GRADIENTS * (steps + 1)
    if not all(0 <= count <= most for count in effort):
        raise InputError(
            f"gradients={effort.gradients:.3g} and passes={effort.passes:.3g} in {steps} steps are impossible; both "
            f"must lie between 0 and {most}"
        )
    return effort


def read_training(reply: Message, most_steps: int) -> tuple[float, int, int]:
    """Read what a client reports of its training: loss, steps and samples.

    Args:
        reply: the client's reply.
        most_steps: how many steps the method takes at most, with as many samples as the client has.
    """
    loss, steps, samples = reply.get("loss", float), reply.get("steps", int), reply.get("samples", int)
    if not 0 <= steps <= most_steps or not 0 <= samples <= MAX_TRAINED_SAMPLES or not is_value(loss, -LARGEST, LARGEST):
        raise InputError(
            f"steps={steps:.3g}, samples={samples:.3g} and loss={loss:.3g} are impossible; steps must lie between 0 "
            f"and {most_steps}, samples between 0 and {MAX_TRAINED_SAMPLES}, and the loss must not be infinite"
        )
    return loss, steps, samples


def count_steps(plan: Plan, index: int, round: int) -> int:
    """How many steps a client takes at most in a round: as a newcomer, or as one that has trained before."""

    def count(newcomer: bool) -> int:
        ctx = plan.context(index, round, newcomer)
        phases = [phase for phase in plan.method.phases(ctx) if phase.slots]
        return sum(count_passes(plan, phase, ctx.task, plan.part(index, phase.data).size).steps for phase in phases)

    return max(count(True), count(False))


class ScoreValidator:
    """Reads the scores of one exchange.

    Args:
        plan: the server's plan, with blank samples and as little training as possible.
        round: the round.
        download: what the clients received.
        points: the evaluation points that are asked for.
    """

    def __init__(self, plan: Plan, round: int, download: Download, points: tuple[str, ...]) -> None:
        self.plan, self.round, self.download, self.points = plan, round, download, points

    def read(self, index: int, reply: Message, sizes: Mapping[str, int]) -> list[Score]:
        """Read the scores of a client's reply; `sizes` tells how many samples its splits have."""
        entries = reply.get_json("scores")
        if not isinstance(entries, list):
            raise InputError(f"{entries!r:.80} is not a list of scores")
        allowed, scores = dict(self._allow(index, sizes)), dict[tuple[str, str, str], Score]()
        for entry in entries:
            if not isinstance(entry, list) or [type(value) for value in entry] != SCORE:
                raise InputError(f"{entry!r:.80} is not a score; one is [point, split, metric, value, samples]")
            score = Score(*entry)
            name = (score.point, score.split, score.metric)
            if score.point == "state" and name not in allowed:
                allowed |= self._allow_records(index)
            if name not in allowed:
                raise InputError(f"it scores {name!r:.120}, which nobody asked for")
            if name in scores:
                raise InputError(f"it scores {name!r:.120} twice")
            self._check(score, allowed[name])
            scores[name] = score
        return list(scores.values())

    def _check(self, score: Score, range: Range) -> None:
        if score.samples != range.samples:
            raise InputError(
                f"it scores {score.samples:.6g} {score.split} samples, but had {range.samples} when it joined"
            )
        if not is_value(score.value, range.low, range.high):
            raise InputError(
                f"its {score.metric} of {score.value:.6g} is impossible; {range.low:.6g} to {range.high:.6g} is allowed"
            )

    def _allow(self, index: int, sizes: Mapping[str, int]) -> Iterator[tuple[tuple[str, str, str], Range]]:
        """The scores of the model: its loss and metrics at all points, on the splits that have samples."""
        task = self.plan.tasks[self.plan.networks[index] if self.plan.networks else 0]
        limits = {"loss": (-LARGEST, LARGEST)}
        limits |= {name: (max(m.low, -LARGEST), min(m.high, LARGEST)) for name, m in task.metrics.items()}
        for split in ("val", "test"):
            for point in self.points if sizes[split] else ():
                yield from (((point, split, name), Range(*limit, sizes[split])) for name, limit in limits.items())

    def _allow_records(self, index: int) -> dict[tuple[str, str, str], Range]:
        """The numbers that the method records of a client which has trained."""
        if "personal" not in self.points:
            return {}
        state = train(self.plan, index, self.round, None, self.download.of(index)).state
        records = self.plan.method.client_records(self.plan.context(index, self.round, newcomer=False), state)
        return {("state", "", name): Range(-LARGEST, LARGEST, 0) for name in records}


def is_value(value: float, low: float, high: float) -> bool:
    """Whether a number lies in a range, up to rounding; NaN, which says "undefined", always does.

    >>> is_value(1.0, 0, 1), is_value(math.nan, 0, 1), is_value(77.0, 0, 1), is_value(math.inf, 0, math.inf)
    (True, True, False, False)
    """
    return math.isnan(value) or (math.isfinite(value) and low - ROUNDING <= value <= high + ROUNDING)
