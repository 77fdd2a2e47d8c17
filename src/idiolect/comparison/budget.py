"""Equal budgets: what a round of a method costs, measured by its first rounds, and how many rounds so many gradients
allow."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from ..core.errors import InputError
from ..engines import Plan
from ..runs.round_loop import Progress
from ..runs.trial import Trial

BUDGETS = ("gradients", "rounds")
"""What all methods may get alike."""
MEASURED = 3
"""Rounds that are measured."""


class RoundCost(NamedTuple):
    """What rounds of a method cost.

    Attributes:
        first_gradients: gradients of the rounds before the last measured one, which may differ from later ones.
        gradients: gradients of a later round.
        seconds, eval_seconds: time of a round, and of one evaluation.
    """

    first_gradients: int
    gradients: int
    seconds: float
    eval_seconds: float

    def fit_rounds(self, allowed: int, rounds: int) -> int:
        """How many of `rounds` so many gradients allow, at least those that come before the last measured one.

        >>> RoundCost(first_gradients=40, gradients=20, seconds=0, eval_seconds=0).fit_rounds(allowed=100, rounds=10)
        5
        """
        return min(rounds, MEASURED - 1 + max(0, allowed - self.first_gradients) // max(1, self.gradients))


def measure_rounds(plan: Plan, engine: str) -> RoundCost:
    """What the rounds of a plan cost, by the first few; many methods set something up in those before the last."""
    trial, rounds = Trial(replace(plan, rounds=max(MEASURED, plan.rounds)), engine), list[Progress]()
    trial.advance(MEASURED - 1, rounds.append)
    first = trial.gradients
    trial.advance(MEASURED, rounds.append)
    started = time.perf_counter()
    trial.score()
    return RoundCost(first, trial.gradients - first, rounds[-1].seconds, time.perf_counter() - started)


def check_budget(budget: str) -> None:
    """Refuse what is no budget."""
    if budget not in BUDGETS:
        raise InputError(f"budget={budget!r} is not allowed; it must be one of {', '.join(BUDGETS)}")
