"""What is known about a run beside its states and metrics: how far it is, which round was selected, what it cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """What a run had spent after a round."""

    bytes_up: float
    bytes_down: float
    seconds: float


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run, as its store keeps them; the defaults are those of a run that has not begun.

    Attributes:
        engine: the expression of the engine, with `auto` resolved.
        calibration: seconds per client of each engine that `auto` measured.
        next_round: the round to do next, counted from 0; rounds before 0 set a method up. None before the first.
        selected: the selected round, counted from 0; None before the first evaluation.
        selected_score: its validation score; None where validation data are missing or undefined.
        selection: how it was selected, in words.
        bytes_up, bytes_down: bytes of all uploads, and of all downloads to clients that train.
        bytes_eval: bytes of the downloads that evaluations need.
        steps: local steps of all clients.
        gradients, passes: gradients of the model on a batch in local training, and forward passes beside them.
        refusals: uploads that were left out, by what was wrong with them.
        idle: how often a client had nothing to train on.
        dropped, late: how often a participant dropped out before it trained, or sent its upload too late.
        seconds: time of all rounds.
        server_mb: the largest size of the server's state.
        peak_memory_mb: the largest resident memory of the process.
    """

    engine: str | None = None
    calibration: Mapping[str, float] = field(default_factory=dict)
    next_round: int | None = None
    selected: int | None = None
    selected_score: float | None = None
    selection: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_eval: int = 0
    steps: int = 0
    gradients: int = 0
    passes: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    idle: int = 0
    dropped: int = 0
    late: int = 0
    seconds: float = 0.0
    server_mb: float = 0.0
    peak_memory_mb: float = 0.0

    @property
    def rounds_done(self) -> int:
        """How many rounds are done, those that set a method up left out.

        >>> RunFacts().rounds_done, RunFacts(next_round=-1).rounds_done, RunFacts(next_round=3).rounds_done
        (0, 0, 3)
        """
        return max(0, self.next_round or 0)

    @property
    def refused(self) -> int:
        """How many uploads were left out."""
        return sum(self.refusals.values())

    @property
    def cost(self) -> Cost:
        """What the run has spent so far."""
        return Cost(self.bytes_up, self.bytes_down, self.seconds)

    def changes(self, before: RunFacts) -> dict[str, Any]:
        """The facts that differ from those before, by name.

        >>> RunFacts(next_round=1, steps=4).changes(RunFacts(next_round=0, steps=4))
        {'next_round': 1}
        """
        return {name: value for name, value in vars(self).items() if value != getattr(before, name)}


NAMES = tuple(entry.name for entry in fields(RunFacts))


def read_facts(stored: Mapping[str, str]) -> RunFacts:
    """The facts from their stored form, a JSON text by name.

    >>> read_facts({"next_round": "3", "engine": '"loop"'}).engine
    'loop'
    """
    return RunFacts(**{name: json.loads(text) for name, text in stored.items()})
