"""A race: methods under an equal budget, of which after each rung the worse half drops out (successive halving). It is
judged by validation alone; no method sees test data."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..comparison.conditions import count_fedavg_steps
from ..contract import Method
from ..core.registry import describe
from ..engines import Plan
from ..runs.progress import Reporter
from ..runs.round_loop import Progress
from ..runs.trial import Trial

RUNGS = (1 / 3, 2 / 3, 1.0)
"""The share of its rounds that a method has done at the end of each rung."""
TIMED = 3
"""Rounds that are timed before the race."""
BUDGETS = ("steps", "rounds")


@dataclass(frozen=True)
class Contender:
    """A method that takes part: its rounds if it is never dropped, and what a round costs.

    Attributes:
        plan: what is run if it is never dropped.
        first_steps: local steps of the rounds before the last timed one, which may differ from later ones.
        steps: local steps of a later round.
        seconds: time of a round.
        eval_seconds: time of one evaluation.
    """

    plan: Plan
    first_steps: int
    steps: int
    seconds: float
    eval_seconds: float

    @property
    def method(self) -> str:
        """The expression."""
        return describe(self.plan.method)

    @property
    def rounds(self) -> int:
        """Rounds of the whole race."""
        return self.plan.rounds

    def rounds_at(self, rung: int) -> int:
        """The rounds that are done at the end of a rung, at least one."""
        return max(1, math.ceil(RUNGS[rung] * self.rounds))

    def rounds_in(self, rung: int) -> int:
        """The rounds of a rung."""
        return self.rounds_at(rung) - (self.rounds_at(rung - 1) if rung else 0)


@dataclass(frozen=True)
class RaceSchedule:
    """A race that is planned but not run."""

    contenders: tuple[Contender, ...]
    engine: str
    budget: str = "steps"

    @property
    def counts(self) -> tuple[int, ...]:
        """How many methods run each rung: half of them, rounded up, go on."""
        counts = [len(self.contenders)]
        while len(counts) < len(RUNGS):
            counts.append(math.ceil(counts[-1] / 2))
        return tuple(counts)

    @property
    def rounds(self) -> int:
        """The most rounds that the race can have."""
        return sum(
            sum(sorted((each.rounds_in(rung) for each in self.contenders), reverse=True)[:count])
            for rung, count in enumerate(self.counts)
        )

    @property
    def seconds(self) -> float:
        """About how long the race takes: every rung at the mean pace of all methods."""
        total = 0.0
        for rung, count in enumerate(self.counts):
            costs = [each.rounds_in(rung) * each.seconds + each.eval_seconds for each in self.contenders]
            total += count * sum(costs) / len(costs)
        return total


@dataclass(frozen=True)
class Place:
    """Where a method ended: its validation score, in which rung, after which rounds, steps and seconds."""

    method: str
    score: float
    rung: int
    rounds: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Race:
    """A race that was run; the first place won."""

    places: tuple[Place, ...]
    metric: str
    direction: str
    budget: str

    def __getitem__(self, method: str) -> Place:
        """Where a method ended."""
        return next(place for place in self.places if place.method == method)


def plan_race(methods: Sequence[Method], plan: Plan, engine: str, rounds: int, budget: str = "steps") -> RaceSchedule:
    """Time a few rounds of every method, and plan the race.

    Args:
        methods: who takes part.
        plan: FedAvg's plan, on data without test samples; the others get the same but for the method.
        engine: the engine's expression.
        rounds: FedAvg's rounds if it is never dropped.
        budget: `steps` gives all methods the local steps that FedAvg takes in these rounds, `rounds` the same rounds.
    """
    plan = replace(plan, rounds=rounds)
    allowed = count_fedavg_steps(plan)
    contenders = []
    for method in methods:
        contender = time_rounds(replace(plan, method=method), engine)
        first, steps = contender.first_steps, contender.steps
        if budget == "steps" and first + (rounds - TIMED + 1) * steps > allowed:
            fitting = TIMED - 1 + max(0, allowed - first) // max(1, steps)
            contender = replace(contender, plan=replace(contender.plan, rounds=min(fitting, rounds)))
        contenders.append(contender)
    return RaceSchedule(tuple(contenders), engine, budget)


def time_rounds(plan: Plan, engine: str) -> Contender:
    """What the rounds of a plan cost, by the first few; many methods set something up in those before the last."""
    trial, rounds = Trial(replace(plan, rounds=max(TIMED, plan.rounds)), engine), list[Progress]()
    trial.advance(TIMED - 1, rounds.append)
    first = trial.steps
    trial.advance(TIMED, rounds.append)
    started = time.perf_counter()
    trial.score()
    return Contender(plan, first, trial.steps - first, rounds[-1].seconds, time.perf_counter() - started)


def run_race(schedule: RaceSchedule, reporter: Reporter | None = None) -> Race:
    """Run a race that is planned.

    After each rung the methods are sorted by their sample-weighted validation score and the worse half drops out; of
    equal ones the first named stays. A method that dropped out is placed by the rung it reached, then by its score.
    """
    reporter = reporter or Reporter()
    task = schedule.contenders[0].plan.tasks[0]
    metric = next(iter(task.metrics))
    higher = task.metrics[metric].higher_is_better
    reporter.begin(sum(schedule.counts), schedule.rounds)
    running = [(contender, Trial(contender.plan, schedule.engine)) for contender in schedule.contenders]
    placed: list[Place] = []
    for rung in range(len(RUNGS)):
        ranked = sort_places([run_rung(*each, rung, metric, reporter) for each in running], higher)
        staying = {place.method for place in ranked[: schedule.counts[rung + 1]]} if rung + 1 < len(RUNGS) else set()
        placed = [place for place in ranked if place.method not in staying] + placed
        running = [(contender, trial) for contender, trial in running if contender.method in staying]
    return Race(tuple(placed), metric, "higher" if higher else "lower", schedule.budget)


def run_rung(contender: Contender, trial: Trial, rung: int, metric: str, reporter: Reporter) -> Place:
    """Run one method to the end of a rung and judge it."""
    label = f"{contender.method} rung {rung + 1}"
    reporter.start(label, contender.rounds_at(rung), trial.rounds)
    trial.advance(contender.rounds_at(rung), partial(reporter.step, label))
    score = trial.score()
    reporter.end(label, {"metric": metric, metric: {"selected": {"weighted": score}}, "seconds": trial.seconds})
    return Place(contender.method, score, rung, trial.rounds, trial.steps, trial.seconds)


def sort_places(places: Sequence[Place], higher: bool) -> list[Place]:
    """Places, best score first; equal ones keep their order, and what is not a number comes last."""

    def key(place: Place) -> float:
        return math.inf if math.isnan(place.score) else -place.score if higher else place.score

    return sorted(places, key=key)
