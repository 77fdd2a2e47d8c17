"""A race: methods under an equal budget, of which after each rung the worse half drops out (successive halving). It is
judged by validation alone; no method sees test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..comparison.budget import RoundCost, measure_rounds
from ..comparison.conditions import count_fedavg_gradients
from ..contract import Method
from ..core.errors import TrainingError
from ..core.registry import describe
from ..engines import Plan
from ..runs.progress import Reporter
from ..runs.trial import Trial, describe_trial

RUNGS = (1 / 3, 2 / 3, 1.0)
"""The share of its rounds that a method has done at the end of each rung."""


@dataclass(frozen=True)
class Contender:
    """A method that takes part: what is run if it is never dropped, and what a round costs."""

    plan: Plan
    cost: RoundCost

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
    """A race that is planned but not run; `failed` are methods that learned nothing when they were timed, and why."""

    contenders: tuple[Contender, ...]
    engine: str
    budget: str = "gradients"
    select: str = "weighted"
    failed: Mapping[str, str] = field(default_factory=dict)

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
            sum(sorted((contender.rounds_in(rung) for contender in self.contenders), reverse=True)[:count])
            for rung, count in enumerate(self.counts)
        )

    @property
    def seconds(self) -> float:
        """About how long the race takes: every rung at the mean pace of all methods."""
        total = 0.0
        for rung, count in enumerate(self.counts):
            costs = [
                contender.rounds_in(rung) * contender.cost.seconds + contender.cost.eval_seconds
                for contender in self.contenders
            ]
            total += count * sum(costs) / len(costs)
        return total


@dataclass(frozen=True)
class Place:
    """Where a method ended: its validation score, in which rung, after which rounds, gradients and seconds."""

    method: str
    score: float
    rung: int
    rounds: int
    gradients: int
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


def plan_race(
    methods: Sequence[Method], plan: Plan, engine: str, rounds: int, budget: str = "gradients", select: str = "weighted"
) -> RaceSchedule:
    """Measure a few rounds of every method, and plan the race.

    Args:
        methods: who takes part.
        plan: FedAvg's plan, on data without test samples; the others get the same but for the method.
        engine: the engine's expression.
        rounds: FedAvg's rounds if it is never dropped.
        budget: `gradients` gives all methods as many as FedAvg takes in these rounds, `rounds` the same rounds.
        select: as in a run; which mean over clients judges.
    """
    plan = replace(plan, rounds=rounds)
    allowed = count_fedavg_gradients(plan)
    contenders, failed = [], dict[str, str]()
    for method in methods:
        try:
            cost = measure_rounds(replace(plan, method=method), engine)
        except TrainingError as error:
            failed[describe(method)] = str(error)
            continue
        fitting = cost.fit_rounds(allowed, rounds) if budget == "gradients" else rounds
        contenders.append(Contender(replace(plan, method=method, rounds=fitting), cost))
    if not contenders:
        raise TrainingError(f"none of the methods can be raced; {next(iter(failed.values()))}")
    return RaceSchedule(tuple(contenders), engine, budget, select, failed)


def run_race(schedule: RaceSchedule, reporter: Reporter | None = None) -> Race:
    """Run a race that is planned.

    After each rung the methods are sorted by their validation score and the worse half drops out; of
    equal ones the first named stays. A method that dropped out is placed by the rung it reached, then by its score.
    """
    reporter = reporter or Reporter()
    task = schedule.contenders[0].plan.tasks[0]
    metric = next(iter(task.metrics))
    higher = task.metrics[metric].higher_is_better
    reporter.begin(sum(schedule.counts), schedule.rounds)
    running = [
        (contender, Trial(contender.plan, schedule.engine, select=schedule.select)) for contender in schedule.contenders
    ]
    placed: list[Place] = []
    for rung in range(len(RUNGS)):
        ranked = sort_places([run_rung(*entry, rung, metric, reporter) for entry in running], higher)
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
    reporter.end(label, describe_trial(metric, score, trial.seconds))
    return Place(contender.method, score, rung, trial.rounds, trial.gradients, trial.seconds)


def sort_places(places: Sequence[Place], higher: bool) -> list[Place]:
    """Places, best score first; equal ones keep their order, and what is not a number comes last."""

    def key(place: Place) -> float:
        return math.inf if math.isnan(place.score) else -place.score if higher else place.score

    return sorted(places, key=key)
