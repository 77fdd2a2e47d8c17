"""How fast runs go on, measured while they do; `report` shows it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ..core.tables import compact
from .round_loop import Progress as Round

WINDOW = 20


class Meter:
    """The pace of one run, from its newest rounds.

    >>> meter = Meter(rounds=10)
    >>> meter.add(Round(0, 10, clients=5, loss=0.5, score=0.75, seconds=2.0, samples=40))
    >>> meter.facts(), meter.left
    ('5 clients  20 samples/s  loss 0.500  val 0.750', 18.0)
    """

    def __init__(self, rounds: int, done: int = 0) -> None:
        self.rounds, self.done = rounds, done
        self._newest: deque[Round] = deque(maxlen=WINDOW)

    def add(self, round: Round) -> None:
        """Count a round that ended."""
        self.done = round.round + 1
        self._newest.append(round)

    @property
    def left(self) -> float:
        """The seconds that the remaining rounds will take at the pace of the newest; NaN before the first."""
        if not self._newest:
            return math.nan
        return (self.rounds - self.done) * sum(round.seconds for round in self._newest) / len(self._newest)

    def facts(self, clients: bool = True) -> str:
        """The newest round in words; what is not known is left out; the number of clients on demand."""
        if not self._newest:
            return ""
        newest = self._newest[-1]
        pace = sum(round.samples for round in self._newest) / max(1e-9, sum(round.seconds for round in self._newest))
        parts = [f"{newest.clients} client{'s' * (newest.clients != 1)}"] if clients else []
        parts.append(f"{pace:,.0f} samples/s")
        if not math.isnan(newest.loss):
            parts.append(f"loss {compact(newest.loss)}")
        if not math.isnan(newest.score):
            parts.append(f"val {compact(newest.score)}")
        return "  ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> clock(65.4), clock(3723), clock(float("nan"))
    ('1:05', '1:02:03', '-:--')
    """
    if math.isnan(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Reporter:
    """Receives how runs go on and shows nothing; subclasses show it.

    A run is known by its label: `start`, `step` after every round, `end`. A comparison calls `begin` first, with the
    number of its runs and of all their rounds.
    """

    def __init__(self) -> None:
        self.meters: dict[str, Meter] = {}
        self.runs, self.runs_done, self.rounds, self.rounds_done = 1, 0, 0, 0
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """There is nothing to release."""

    def begin(self, runs: int, rounds: int) -> None:
        """Several runs follow, with so many rounds left to do in all; those before, as of a tuning, count no more."""
        self.runs, self.rounds, self.began = runs, rounds, time.monotonic()
        self.runs_done = self.rounds_done = 0

    def reading(self, what: str, done: int, total: int) -> None:
        """Data are being read, before a run starts: so many of all."""

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """A run starts, or goes on after `done` rounds."""
        self.meters[label] = Meter(rounds, done)

    def step(self, label: str, round: Round) -> None:
        """A run has done a round."""
        self.meters[label].add(round)
        self.rounds_done += round.round >= 0  # set-up rounds are not among those that are left to do

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """A run is done, with this summary."""
        self._close(label)

    def fail(self, label: str, reason: str) -> None:
        """A run of a comparison learned nothing, for this reason; the others go on."""
        self._close(label)

    def _close(self, label: str) -> None:
        """Count a run, and not the rounds that it will not do any more."""
        meter = self.meters.pop(label)
        self.runs_done += 1
        self.rounds -= meter.rounds - max(0, meter.done)

    @property
    def left(self) -> float:
        """The seconds that all remaining rounds of all runs will take at the pace so far."""
        if self.runs == 1:
            return next((meter.left for meter in self.meters.values()), math.nan)
        if not self.rounds_done:
            return math.nan
        return (self.rounds - self.rounds_done) * (time.monotonic() - self.began) / self.rounds_done
