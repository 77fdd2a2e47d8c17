"""Tunings that a committed result holds, so that a claim which takes over another's learning rates does not repeat its
trials. They are taken only where they are what the trials would give again: the other claim's file is the same, and so
is the number that is raised when this library's numbers change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __numerics__
from ..contract import Method
from ..contract import methods as registry
from ..tuning.records import TrialRecord
from ..tuning.space import LEARNING_RATE, parse_dimension
from .files import define, read_result, result_path
from .tunings import Origin, TuningTask


@dataclass(frozen=True)
class CommittedTuning(TuningTask):
    """A tuning whose trials, and what they led to, were read from a committed result."""

    trials: tuple[TrialRecord, ...] = ()
    chosen: tuple[str, float] = ("", 0.0)

    def read_trials(self) -> list[TrialRecord]:
        """The trials that the result holds."""
        return list(self.trials)

    def is_done(self) -> bool:
        """They are done."""
        return True

    def read_chosen(self) -> tuple[str, float]:
        """The expression and the learning rate that were chosen."""
        return self.chosen


def take_committed(task: TuningTask, origin: Origin, folder: Path | None) -> TuningTask:
    """A task as the committed result of its claim has it; the task itself where there is none or it is of another
    definition or of other numerics, or where the cache has all trials."""
    if folder is None or task.is_done():
        return task
    result = read_result(result_path(folder, origin.claim.name))
    if result is None or (result.get("definition"), result.get("numerics")) != (define(origin.claim), __numerics__):
        return task
    described = next(
        each
        for case in result["cases"]
        if case["case"] == origin.case.name
        for each in case["methods"]
        if each["method"] == task.method
    )
    if described["expression"] is None or not described.get("trials"):
        return task
    trials = tuple(read_trial(task, number, values) for number, values in enumerate(described["trials"]))
    return CommittedTuning(
        task.method, task.space, task.settings, task.folder, trials, (described["expression"], described["lr"])
    )


def read_trial(task: TuningTask, number: int, values: Mapping[str, Any]) -> TrialRecord:
    """A trial from a result, which keeps what was tried as an expression and a learning rate."""
    method = registry.build(values["expression"])
    tried = {path: find_value(method, path, values["lr"]) for path in (parse_dimension(text)[0] for text in task.space)}
    tried = {LEARNING_RATE if path == "lr" else path: value for path, value in tried.items()}
    return TrialRecord(task.method, number, tried, values["expression"], values["lr"], values["score"], 0, 0, 0.0)


def find_value(method: Method, path: str, lr: float) -> Any:
    """The value of what a space names, as a method has it."""
    value: Any = method
    for name in () if path == "lr" else path.split("."):
        value = getattr(value, name)
    return lr if path == "lr" else value
