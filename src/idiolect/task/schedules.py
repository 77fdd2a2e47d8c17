"""Schedules: how the learning rate changes over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..core.options import Options, option
from ..core.registry import Registry


@dataclass(frozen=True)
class Schedule(Options):
    """A factor on the learning rate that depends on the round."""

    def factor(self, round: int, rounds: int) -> float:
        """The factor in `round`, counted from 0, of `rounds`."""
        return 1.0


schedules: Registry[Schedule] = Registry("schedule", Schedule)
schedules.register("constant")(Schedule)


@schedules.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 down to `final` along half a cosine."""

    final: float = option(0.0, min=0.0, max=1.0, help="the factor at the end")

    def factor(self, round: int, rounds: int) -> float:
        """The factor in `round`."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * round / max(1, rounds))) / 2


@schedules.register("exponential")
@dataclass(frozen=True)
class Exponential(Schedule):
    """Times `gamma` every round."""

    gamma: float = option(0.99, above=0.0, max=1.0, help="factor per round")

    def factor(self, round: int, rounds: int) -> float:
        """The factor in `round`."""
        return self.gamma**round


@schedules.register("step")
@dataclass(frozen=True)
class Step(Schedule):
    """Times `gamma` at every one of the given shares of the rounds."""

    at: tuple[float, ...] = option(
        (0.75,), min=0.0, max=1.0, help="shares of the rounds at which the learning rate drops"
    )
    gamma: float = option(0.1, above=0.0, max=1.0, help="factor per drop")

    def factor(self, round: int, rounds: int) -> float:
        """The factor in `round`."""
        return self.gamma ** sum(round >= share * rounds for share in self.at)


@dataclass(frozen=True)
class Custom(Schedule):
    """A user's own function of (round, rounds)."""

    function: Callable[[int, int], float] = lambda round, rounds: 1.0

    def factor(self, round: int, rounds: int) -> float:
        """The factor in `round`."""
        return float(self.function(round, rounds))
