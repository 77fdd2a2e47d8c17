"""Which round is selected for the whole federation: by validation, on the same clients, round after round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .settings import SELECTIONS
from .summary import ClientScores, average, is_better, leave_out_undefined

WINDOW = 10
"""The evaluated rounds whose mean `last10` compares."""


def headline_mean(rule: str) -> str:
    """The mean over clients that a rule compares, and that is then the headline: `weighted` by samples, or `mean`."""
    return "mean" if rule == "mean" else "weighted"


def beats(new: ClientScores, best: ClientScores, mean: str, higher: bool) -> bool:
    """Whether a round's scores beat those of the best round so far, on the clients that both scored.

    Where these are fewer than half of the clients of either round, the round that scored more clients is better.

    >>> best = {0: (0.5, 1), 1: (0.25, 1)}
    >>> beats({0: (0.75, 1)}, best, "mean", True), beats({0: (0.4, 1)}, best, "mean", True)
    (True, False)
    """
    new, best = leave_out_undefined(new), leave_out_undefined(best)
    both = new.keys() & best.keys()
    if 2 * len(both) < max(len(new), len(best)):
        return len(new) > len(best)
    a, b = (average({client: scores[client] for client in both}, mean) for scores in (new, best))
    return is_better(a, b, higher)


def average_rounds(rounds: Iterable[ClientScores]) -> ClientScores:
    """Every client's mean over the rounds that scored it, with its newest number of samples.

    >>> average_rounds([{0: (0.5, 4), 1: (1.0, 2)}, {0: (0.75, 4)}])
    {0: (0.625, 4), 1: (1.0, 2)}
    """
    values: dict[int, list[float]] = {}
    samples: dict[int, int] = {}
    for scores in rounds:
        for client, (value, count) in scores.items():
            values.setdefault(client, []).append(value)
            samples[client] = count
    return {client: (sum(known) / len(known), samples[client]) for client, known in values.items()}


@dataclass
class Selection:
    """The selected round so far; it depends on the scores of the evaluated rounds, in order, and on nothing else.

    >>> selection = Selection("weighted", higher=True)
    >>> for round, score in enumerate((0.5, 0.75, 0.25)):
    ...     selection.add(round, {0: (score, 10)})
    >>> selection.round, selection.score, selection.words
    (1, 0.75, 'sample-weighted validation')
    """

    rule: str
    higher: bool
    round: int | None = None
    is_validated: bool = False
    _best: ClientScores = field(default_factory=dict)
    _window: deque[ClientScores] = field(init=False)

    def __post_init__(self) -> None:
        self._window = deque(maxlen=WINDOW if self.rule == "last10" else 1)

    @property
    def score(self) -> float:
        """The validation score of the selected round; NaN where there is none."""
        return average(self._best, headline_mean(self.rule))

    @property
    def words(self) -> str:
        """How the round was selected."""
        if self._best or self.rule == "last":
            return SELECTIONS[self.rule]
        return "last round, since validation is " + ("undefined for every client" if self.is_validated else "missing")

    def add(self, round: int, scores: ClientScores) -> None:
        """Take the validation scores of the next evaluated round into account; there may be none."""
        self.is_validated |= bool(scores)
        candidate: ClientScores = {}
        is_growing = len(self._window) < (self._window.maxlen or 1)
        if scores:
            self._window.append(leave_out_undefined(scores))
            candidate = average_rounds(self._window)
        if (
            self.rule == "last"
            or not self._best
            or (is_growing and candidate)
            or beats(candidate, self._best, headline_mean(self.rule), self.higher)
        ):
            self.round, self._best = round, candidate
