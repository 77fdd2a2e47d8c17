"""A race: methods under an equal budget, of which after each leg the worse half drops out (successive halving). It is
judged by validation alone; its runners never had test data."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..comparison.api import budget as steps_of_fedavg
from ..contract import Method
from ..core.registry import describe
from ..engines import Plan
from ..runs.progress import Reporter
from ..runs.round_loop import Progress
from ..runs.trial import Trial

LEGS = (1 / 3, 2 / 3, 1.0)
"""The share of its rounds that a method has done at the end of each leg."""
TIMED = 3
"""Rounds that are timed before the race."""
BUDGETS = ("steps", "rounds")


@dataclass(frozen=True)
class Runner:
    """A method that takes part: its rounds if it is never dropped, and what a round costs.

    Attributes:
        plan: what it would carry out.
        steps: local steps of a round; `first` are those of the rounds before the last timed one, which may differ.
        seconds: time of a round, and `judged` that of one evaluation.
    """

    plan: Plan
    first: int
    steps: int
    seconds: float
    judged: float

    @property
    def method(self) -> str:
        """The expression."""
        return describe(self.plan.method)

    @property
    def rounds(self) -> int:
        """Rounds of the whole race."""
        return self.plan.rounds

    def at(self, leg: int) -> int:
        """The rounds at the end of a leg, at least one."""
        return max(1, math.ceil(LEGS[leg] * self.rounds))

    def leg(self, leg: int) -> int:
        """The rounds of a leg."""
        return self.at(leg) - (self.at(leg - 1) if leg else 0)


@dataclass(frozen=True)
class Course:
    """A race that is planned but not run."""

    runners: tuple[Runner, ...]
    engine: str
    budget: str = "steps"

    @property
    def left(self) -> tuple[int, ...]:
        """How many methods run each leg: half of them, rounded up, go on."""
        counts = [len(self.runners)]
        while len(counts) < len(LEGS):
            counts.append(math.ceil(counts[-1] / 2))
        return tuple(counts)

    @property
    def rounds(self) -> int:
        """The most rounds that the race can have."""
        return sum(
            sum(sorted((each.leg(leg) for each in self.runners), reverse=True)[:n]) for leg, n in enumerate(self.left)
        )

    @property
    def seconds(self) -> float:
        """About how long the race takes: every leg at the mean pace of all methods."""
        legs = [[each.leg(leg) * each.seconds + each.judged for each in self.runners] for leg in range(len(LEGS))]
        return sum(n * sum(costs) / len(costs) for n, costs in zip(self.left, legs, strict=True))


@dataclass(frozen=True)
class Place:
    """Where a method ended: its validation score, in which leg, after which rounds, steps and seconds."""

    method: str
    score: float
    leg: int
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
        return next(each for each in self.places if each.method == method)


def set_out(methods: Sequence[Method], plan: Plan, engine: str, rounds: int, budget: str = "steps") -> Course:
    """Time a few rounds of every method, and plan the race.

    Args:
        methods: who takes part.
        plan: FedAvg's plan, on data without test samples; the others get the same but for the method.
        engine: the engine's expression.
        rounds: FedAvg's rounds if it is never dropped.
        budget: `steps` gives all methods the local steps that FedAvg takes in these rounds, `rounds` the same rounds.
    """
    plan = replace(plan, rounds=rounds)
    allowed = steps_of_fedavg(plan)
    runners = []
    for method in methods:
        runner = timed(replace(plan, method=method), engine)
        if budget == "steps" and runner.first + (rounds - TIMED + 1) * runner.steps > allowed:
            fitting = TIMED - 1 + max(0, allowed - runner.first) // max(1, runner.steps)
            runner = replace(runner, plan=replace(runner.plan, rounds=min(fitting, rounds)))
        runners.append(runner)
    return Course(tuple(runners), engine, budget)


def timed(plan: Plan, engine: str) -> Runner:
    """What the rounds of a plan cost, by the first few; many methods set something up in those before the last."""
    trial, seen = Trial(replace(plan, rounds=max(TIMED, plan.rounds)), engine), list[Progress]()
    trial.advance(TIMED - 1, seen.append)
    first = trial.steps
    trial.advance(TIMED, seen.append)
    started = time.perf_counter()
    trial.score()
    return Runner(plan, first, trial.steps - first, seen[-1].seconds, time.perf_counter() - started)


def run(course: Course, reporter: Reporter | None = None) -> Race:
    """Run a race that is planned.

    After each leg the methods are sorted by their sample-weighted validation score and the worse half drops out; of
    equal ones the first named stays. A method that dropped out is placed by the leg it reached, then by its score.
    """
    told = reporter or Reporter()
    task = course.runners[0].plan.tasks[0]
    metric = next(iter(task.metrics))
    higher = task.metrics[metric].higher_is_better
    told.begin(sum(course.left), course.rounds)
    entered = [(runner, Trial(runner.plan, course.engine)) for runner in course.runners]
    out: list[Place] = []
    for leg in range(len(LEGS)):
        places = []
        for runner, trial in entered:
            label = f"{runner.method} leg {leg + 1}"
            told.start(label, runner.at(leg), trial.rounds)
            trial.advance(runner.at(leg), partial(told.step, label))
            score = trial.score()
            places.append(Place(runner.method, score, leg, trial.rounds, trial.steps, trial.seconds))
            told.end(label, {"metric": metric, metric: {"selected": {"weighted": score}}, "seconds": trial.seconds})
        ranked = ordered(places, higher)
        stay = {each.method for each in ranked[: course.left[leg + 1]]} if leg + 1 < len(LEGS) else set()
        out = [each for each in ranked if each.method not in stay] + out
        entered = [(runner, trial) for runner, trial in entered if runner.method in stay]
    return Race(tuple(out), metric, "higher" if higher else "lower", course.budget)


def ordered(places: Sequence[Place], higher: bool) -> list[Place]:
    """Places, best score first; equal ones keep their order, and what is not a number comes last."""

    def key(place: Place) -> float:
        return math.inf if math.isnan(place.score) else -place.score if higher else place.score

    return sorted(places, key=key)
