"""Tuning the methods of a claim: each in a folder that is named after what is tried, so that claims share equal tunings
and an interrupted one goes on; and what a method takes over from the tuning of another."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..comparison.elsewhere import Follower
from ..contract import Method, Wrapper
from ..contract import methods as registry
from ..core.errors import InputError, TrainingError
from ..core.names import slug
from ..core.options import options_of
from ..core.registry import describe
from ..engines.cluster.task_actor import Send
from ..engines.cluster.tasks import OnRay, Task
from ..runs.progress import Reporter
from ..runs.settings import configure, read_config
from ..runs.trial import describe_trial
from ..tuning.api import CHOSEN, tune
from ..tuning.records import TRIALS, Candidate, TrialRecord, read_trials
from ..tuning.search import count_stepwise
from ..tuning.space import LEARNING_RATE, make_spaces, paths, set_options
from .budgets import Fitted, with_rounds
from .claims import Case, Claim
from .folders import digest


@dataclass(frozen=True)
class TuningTask:
    """One method to be tuned under the settings of a case."""

    method: str
    space: tuple[str, ...]
    settings: Mapping[str, Any]
    folder: Path

    def count(self) -> int:
        """How many trials it takes."""
        method = registry.build(self.method)
        lr = configure({**self.settings, "method": self.method}).lr
        (space,) = make_spaces({self.method: method}, self.space, lr, stepwise=True).values()
        return count_stepwise(Candidate(self.method, method, space), lr)

    def read_trials(self) -> list[TrialRecord]:
        """The trials that are done."""
        return read_trials(self.folder / TRIALS)

    def is_done(self) -> bool:
        """Whether all trials are done."""
        return len(self.read_trials()) >= self.count()

    def carry_out(self, reporter: Reporter | None = None) -> None:
        """Make the trials that are missing."""
        tune(
            [self.method],
            stepwise=True,
            space=list(self.space),
            out=self.folder,
            on="here",
            reporter=reporter,
            **self.settings,
        )

    def read_chosen(self) -> tuple[str, float]:
        """The expression and the learning rate that were chosen."""
        path = self.folder / CHOSEN
        if not path.is_file():
            raise TrainingError(
                f"no trial of {self.method} has a score, so nothing was chosen; why is in {self.folder}"
            )
        chosen = read_config(path)
        return str(chosen["methods"][0]), float(chosen["lr"])


@dataclass(frozen=True)
class Settled:
    """A method as it is run: its expression and learning rate, the trials that led to them, and the method and the
    claim whose they are where these are others."""

    expression: str
    lr: float
    trials: tuple[TrialRecord, ...] = ()
    like: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Origin:
    """Where a method is tuned: in its own claim, or as the method that it follows in another one."""

    claim: Claim
    case: Case
    method: str


def find_origin(claim: Claim, case: Case, method: str, claims: Mapping[str, Claim]) -> Origin:
    """Where a method of a claim that is tuned is tuned."""
    space = claim.tuning
    if space is None or not space.of:
        return Origin(claim, case, method)
    if space.of not in claims:
        raise InputError(f"{claim.name} is tuned like {space.of!r}, which is none of {', '.join(claims)}")
    other = claims[space.of]
    return find_origin(other, other.case(space.case or case.name), space.like.get(method, method), claims)


def make_task(origin: Origin, cache: Path, fitted: Fitted) -> TuningTask:
    """The tuning of a method in its own claim; with its own number of rounds, where it has one."""
    claim, method, space = origin.claim, origin.method, origin.claim.tuning
    if space is None or method not in claim.methods:
        raise InputError(f"{claim.name} does not tune {method}; it tunes {', '.join(claim.methods)}")
    where = with_rounds(claim.case(space.case) if space.case else origin.case, method, fitted)
    settings = {**where.settings, **space.settings, "seed": space.seed}
    tried = space.of_method(method)
    return TuningTask(method, tried, settings, cache / "tuning" / f"{slug(method)}-{digest(method, tried, settings)}")


def list_tasks(
    claim: Claim,
    claims: Mapping[str, Claim],
    cache: Path,
    fitted: Fitted | None = None,
    take: Callable[[TuningTask, Origin], TuningTask] = lambda task, _: task,
) -> dict[tuple[str, str], TuningTask]:
    """The tunings of a claim by case and method. Each must have as many trials as the others. What belongs to another
    claim may be what `take` knows of it."""
    found = {}
    for case in claim.cases if claim.tuning else ():
        for method in claim.methods:
            origin = find_origin(claim, case, method, claims)
            task = make_task(origin, cache, fitted or {})
            found[case.name, method] = task if origin.claim.name == claim.name else take(task, origin)
    counts = {task.method: task.count() for task in found.values()}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{method} {count}" for method, count in counts.items())
        raise InputError(
            f"{claim.name} tunes its methods with different numbers of trials: {listing}; give all the same"
        )
    return found


# -- carrying out -----------------------------------------------------------------------------------------


def carry_out_tunings(
    tasks: Sequence[TuningTask], jobs: int, make_reporter: Callable[[], Reporter], place: OnRay | None = None
) -> None:
    """Carry out tunings, with several jobs each in a process of its own, or each as a task of a cluster."""
    waiting = [task for task in {task.folder: task for task in tasks}.values() if not task.is_done()]
    if place is not None and waiting:
        with make_reporter() as reporter:
            carry_out_elsewhere(waiting, place, reporter)
    elif jobs > 1 and len(waiting) > 1:
        carry_out_beside(waiting, jobs)
    for task in waiting:
        if not task.is_done():  # also what a process could not do: here its error is seen
            with make_reporter() as reporter:
                task.carry_out(reporter)


def carry_out_beside(tasks: Sequence[TuningTask], jobs: int) -> None:
    """Carry out tasks in processes. They end with this one, and lose at most the trial in progress."""
    context, left = multiprocessing.get_context("forkserver"), list(tasks)
    running: list[BaseProcess] = []
    try:
        while left or running:
            while left and len(running) < jobs:
                running.append(context.Process(target=work, args=(left.pop(0),), daemon=True))
                running[-1].start()
            wait([process.sentinel for process in running])
            running = [process for process in running if process.is_alive()]
    finally:
        for process in running:
            process.terminate()


def carry_out_elsewhere(tasks: Sequence[TuningTask], place: OnRay, reporter: Reporter) -> None:
    """Carry out tasks on a cluster; their folders lie here."""
    counts = {f"tuning of {task.folder.name}": (task.count(), len(task.read_trials())) for task in tasks}
    reporter.begin(len(tasks), sum(count - done for count, done in counts.values()))
    asked = [Task(label, tune_on_node, task, task.folder) for label, task in zip(counts, tasks, strict=True)]
    for task, event in Follower(asked, place, reporter, counts).ends():
        if event.kind == "failed":
            raise event.value
        reporter.end(task.label, describe_trial("trials", counts[task.label][0], 0.0))


def tune_on_node(task: TuningTask, folder: Path, send: Send) -> None:
    """Carry out one task on a node."""
    replace(task, folder=folder).carry_out()


def work(task: TuningTask) -> None:
    """Carry out one task in a process of its own."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    task.carry_out()


def end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


# -- what was chosen --------------------------------------------------------------------------------------


def settle(method: str, task: TuningTask | None, case: Case, without: Sequence[str] = ()) -> Settled:
    """A method with what its tuning chose, or that of the method it follows, `without` some options of it."""
    if task is None:
        return Settled(method, configure({**case.settings, "method": method}).lr)
    expression, lr = task.read_chosen()
    trials = tuple(task.read_trials())
    if method == task.method and not without:
        return Settled(expression, lr, trials)
    best = next(trial for trial in trials if (trial.expression, trial.lr) == (expression, lr))
    values = {path: value for path, value in best.values.items() if path not in without}
    adopted = adopt(registry.build(method), registry.build(task.method), values)
    return Settled(describe(adopted), lr, trials, task.method)


def adopt(method: Method, model: Method, values: Mapping[str, Any]) -> Method:
    """A method with the values that were tuned for another one, as far as it has these options and does not set them
    itself. Around that other one, a wrapper passes them on.

    >>> build = registry.build
    >>> describe(adopt(build("fedlag(ditto)"), build("ditto"), {"run.lr": 0.1, "lam": 0.5}))
    'fedlag(ditto(lam=0.5))'
    >>> describe(adopt(build("ditto(lam=2)"), build("ditto"), {"lam": 0.5}))
    'ditto(lam=2.0)'
    """
    wraps = isinstance(method, Wrapper) and type(method) is not type(model) and type(method.inner) is type(model)
    places = {f"inner.{path}" if wraps else path: value for path, value in values.items() if path != LEARNING_RATE}
    known = paths(method)
    return set_options(method, {p: value for p, value in places.items() if p in known and is_default(method, p)})


def is_default(method: Method, path: str) -> bool:
    """Whether an option has its default."""
    owner: Any = method
    *above, name = path.split(".")
    for step in above:
        owner = getattr(owner, step)
    return bool(getattr(owner, name) == options_of(type(owner))[name].default)
