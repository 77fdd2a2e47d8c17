"""Who is there in a round, and whose upload arrives. All of it is drawn from (seed, round, client), so that neither an
engine nor a resume changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.randomness import generator
from ..core.ranges import Ranges

ARRIVES, DROPPED, LATE = "", "dropped", "late"
"""What becomes of a participant: its upload arrives; it drops out before it trains; its upload comes too late."""


@dataclass(frozen=True)
class Presence:
    """When clients are there, and how often they fail.

    Attributes:
        rounds: by position the rounds in which a client is there; who is not among them always is.
        dropout: the probability that a participant gets the model and then drops out.
        stragglers: the probability that it trains and sends, but too late.
    """

    rounds: Mapping[int, Ranges] = field(default_factory=dict)
    dropout: float = 0.0
    stragglers: float = 0.0

    def choose(self, clients: Sequence[int], round: int) -> Sequence[int]:
        """Those of some clients that are there in a round; in rounds that set a method up all are."""
        if not self.rounds or round < 0:
            return clients
        return [i for i in clients if i not in self.rounds or any(a <= round <= b for a, b in self.rounds[i])]

    def fate(self, index: int, round: int, seed: int) -> str:
        """What becomes of a participant of a round.

        >>> Presence(dropout=0.5, stragglers=0.5).fate(0, 0, seed=0) in (DROPPED, LATE), Presence().fate(0, 0, seed=0)
        (True, '')
        """
        if round < 0 or not (self.dropout or self.stragglers):
            return ARRIVES
        drawn = generator(seed, "fate", round, index).random()
        return DROPPED if drawn < self.dropout else LATE if drawn < self.dropout + self.stragglers else ARRIVES
