"""A race: methods under an equal budget, of which after each rung the worse half drops out (successive halving). It is
judged by validation alone; no method sees test data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..comparison.budget import RoundCost, measure_rounds
from ..comparison.conditions import count_fedavg_gradients
from ..comparison.elsewhere import Follower
from ..comparison.statistics import SIGNIFICANT, compare_pairs
from ..contract import Method
from ..core.errors import TrainingError
from ..core.names import slug
from ..core.registry import describe
from ..engines import Plan
from ..engines.cluster.task_actor import Send
from ..engines.cluster.tasks import OnRay, Task
from ..runs.folder import STATE
from ..runs.progress import Reporter
from ..runs.store import Store
from ..runs.trial import Trial, describe_trial

CLOSE = 0.01
"""Relative differences of scores below this are small."""
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
    """Where a method ended: its validation score, in which rung, after which rounds, gradients and seconds; and the
    score of each client, in order."""

    method: str
    score: float
    rung: int
    rounds: int
    gradients: int
    seconds: float
    by_client: tuple[float, ...] = ()


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

    @property
    def rivals(self) -> tuple[Place, ...]:
        """Those that ran as long as the winner and cannot be told from it: over the clients' validation scores the
        difference may be chance, or is small."""
        first, *others = self.places
        return tuple(place for place in others if place.rung == first.rung and not is_apart(first, place))


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


def run_race(schedule: RaceSchedule, reporter: Reporter | None = None, place: OnRay | None = None) -> Race:
    """Run a race that is planned.

    After each rung the methods are sorted by their validation score and the worse half drops out; of
    equal ones the first named stays. A method that dropped out is placed by the rung it reached, then by its score.
    """
    reporter = reporter or Reporter()
    task = schedule.contenders[0].plan.tasks[0]
    metric = next(iter(task.metrics))
    higher = task.metrics[metric].higher_is_better
    reporter.begin(sum(schedule.counts), schedule.rounds)
    running, placed = list(schedule.contenders), list[Place]()
    with ExitStack() as stack:
        run_rung: Callable[[Sequence[Contender], int], list[Place]]
        if place is None:
            run_rung = Rungs(schedule, metric, reporter)
        else:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="idiolect-")))
            run_rung = partial(run_rung_elsewhere, schedule, metric, reporter, place, folder)
        for rung in range(len(RUNGS)):
            ranked = sort_places(run_rung(running, rung), higher)
            staying = {each.method for each in ranked[: schedule.counts[rung + 1]]} if rung + 1 < len(RUNGS) else set()
            placed = [each for each in ranked if each.method not in staying] + placed
            running = [contender for contender in running if contender.method in staying]
    return Race(tuple(placed), metric, "higher" if higher else "lower", schedule.budget)


class Rungs:
    """Runs rungs here, one method after another."""

    def __init__(self, schedule: RaceSchedule, metric: str, reporter: Reporter) -> None:
        self.metric, self.reporter = metric, reporter
        self.trials = {
            contender.method: Trial(contender.plan, schedule.engine, select=schedule.select)
            for contender in schedule.contenders
        }

    def __call__(self, contenders: Sequence[Contender], rung: int) -> list[Place]:
        """Run methods to the end of a rung and judge them."""
        places = []
        for contender in contenders:
            label, trial = label_rung(contender, rung), self.trials[contender.method]
            self.reporter.start(label, contender.rounds_at(rung), trial.rounds)
            places.append(run_rung(contender, rung, trial, partial(self.reporter.step, label)))
            self.reporter.end(label, describe_trial(self.metric, places[-1].score, places[-1].seconds))
        return places


def run_rung_elsewhere(
    schedule: RaceSchedule,
    metric: str,
    reporter: Reporter,
    place: OnRay,
    folder: Path,
    contenders: Sequence[Contender],
    rung: int,
) -> list[Place]:
    """The same on a cluster, all methods beside each other; where each is lies in a folder from rung to rung."""
    tasks = [
        Task(
            label_rung(contender, rung),
            run_rung_on_node,
            (contender, rung, schedule.engine, schedule.select),
            folder / slug(contender.method),
        )
        for contender in contenders
    ]
    before = {task.label: contender for task, contender in zip(tasks, contenders, strict=True)}
    extent = {
        label: (contender.rounds_at(rung), contender.rounds_at(rung - 1) if rung else 0)
        for label, contender in before.items()
    }
    places: dict[str, Place] = {}
    for task, event in Follower(tasks, place, reporter, extent).ends():
        if event.kind == "failed":
            raise event.value
        places[task.label] = event.value
        reporter.end(task.label, describe_trial(metric, event.value.score, event.value.seconds))
    return [places[label] for label in before]


def run_rung_on_node(argument: tuple[Contender, int, str, str], folder: Path, send: Send) -> Place:
    """Run one method to the end of a rung on a node, from where its folder says that it is."""
    contender, rung, engine, select = argument
    trial = Trial(contender.plan, engine, select=select, store=Store(folder / STATE))
    place = run_rung(contender, rung, trial, send)
    trial.store.close()
    return place


def run_rung(contender: Contender, rung: int, trial: Trial, watch: Send) -> Place:
    """Run one method to the end of a rung and judge it."""
    trial.advance(contender.rounds_at(rung), watch)
    scores = trial.client_scores()
    mean, each = trial.mean(scores), tuple(value for _, (value, _) in sorted(scores.items()))
    return Place(contender.method, mean, rung, trial.rounds, trial.gradients, trial.seconds, each)


def label_rung(contender: Contender, rung: int) -> str:
    """The name of a rung in progress reports."""
    return f"{contender.method} rung {rung + 1}"


def is_apart(first: Place, other: Place) -> bool:
    """Whether two scores differ by more than chance, paired over clients, and not by little.

    >>> def place(*scores):
    ...     return Place("", sum(scores) / 4, 2, 1, 1, 1.0, scores)
    >>> first = place(0.9, 0.8, 0.9, 0.8)
    >>> is_apart(first, place(0.5, 0.5, 0.6, 0.4)), is_apart(first, place(0.7, 1.0, 0.8, 0.8))
    (True, False)
    """
    if math.isnan(other.score):
        return True
    if len(first.by_client) != len(other.by_client) or abs(first.score - other.score) < CLOSE * abs(first.score):
        return False
    return compare_pairs(first.by_client, other.by_client).p < SIGNIFICANT


def sort_places(places: Sequence[Place], higher: bool) -> list[Place]:
    """Places, best score first; equal ones keep their order, and what is not a number comes last."""

    def key(place: Place) -> float:
        return math.inf if math.isnan(place.score) else -place.score if higher else place.score

    return sorted(places, key=key)
