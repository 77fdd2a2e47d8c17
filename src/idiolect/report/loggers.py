"""How runs go on, told to other programs: TensorBoard and MLflow; optional, and imported where they are used."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import InputError, MissingExtraError
from ..core.names import slug
from ..core.reading import watch_reading
from ..runs.progress import Reporter
from ..runs.round_loop import Progress as Round

log = logging.getLogger("idiolect")
EXPERIMENT = "idiolect"


def scalars(round: Round) -> dict[str, float]:
    """The numbers of a round that are known, by name.

    >>> scalars(Round(0, 10, clients=5, loss=0.5, score=math.nan, seconds=2.0, samples=40))
    {'train/loss': 0.5, 'round/seconds': 2.0, 'round/samples_per_second': 20.0}
    """
    named = {
        "train/loss": round.loss,
        "validation/score": round.score,
        "round/seconds": round.seconds,
        "round/samples_per_second": round.samples / max(round.seconds, 1e-9),
    }
    return {name: value for name, value in named.items() if math.isfinite(value)}


def outcome(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary: costs, and every block of scores over clients.

    >>> outcome({"metric": "accuracy", "accuracy": {"selected": {"weighted": 0.5, "round": 3}}, "steps": 7})
    {'accuracy/selected/weighted': 0.5, 'steps': 7.0}
    """
    names = (summary["metric"], "before_adaptation", "after_local", "global", "unseen")
    blocks = {name: summary.get(name, {}) for name in names}
    numbers = {
        f"{name}/{block}/{key}": value
        for name, rounds in blocks.items()
        for block, spread in rounds.items()
        for key, value in spread.items()
        if key != "round"
    }
    costs = (
        "bytes_up",
        "bytes_down",
        "bytes_eval",
        "steps",
        "gradients",
        "passes",
        "seconds",
        "peak_memory_mb",
        "refused",
    )
    numbers |= {name: summary[name] for name in costs if name in summary}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


class TensorBoard(Reporter):
    """A folder of event files, one run of TensorBoard for every run."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("--log tensorboard needs tensorboard: pip install idiolect[tensorboard]") from error
        self.folder, self.make = Path(folder), SummaryWriter
        self.writers: dict[str, Any] = {}

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """Open the run's event file; a run that goes on overwrites what came after its last round."""
        super().start(label, rounds, done)
        method, _, seed = label.partition(" seed ")
        folder = self.folder / slug(method) / (f"seed-{seed}" if seed else "")
        self.writers[label] = self.make(str(folder), purge_step=done + 1 if done > 0 else None)

    def step(self, label: str, round: Round) -> None:
        """Write the numbers of a round."""
        super().step(label, round)
        for name, value in scalars(round).items():
            self.writers[label].add_scalar(name, value, round.round + 1)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Write the numbers of the summary."""
        super().end(label, summary)
        writer = self.writers.pop(label)
        for name, value in outcome(summary).items():
            writer.add_scalar(f"result/{name}", value, int(summary.get("rounds_done", 0)))
        writer.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close what was interrupted."""
        for writer in self.writers.values():
            writer.close()


class MLflow(Reporter):
    """Runs of the experiment `idiolect` on a tracking server or in a database; a server that fails later on is given
    up with a warning, and the runs go on."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise MissingExtraError("--log mlflow needs mlflow: pip install idiolect[mlflow]") from error
        self.make_metric, self.make_param = Metric, Param
        try:
            self.client = MlflowClient(tracking_uri=uri)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(EXPERIMENT)
        except Exception as error:  # whatever the server or its client library makes of a bad address
            raise InputError(f"MLflow at {uri} cannot be used: {first_line(error)}") from error
        self.ids: dict[str, str] = {}
        self.failed = False

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """Create a run."""
        super().start(label, rounds, done)
        self._carefully(self._create, label, {"run": label, "rounds": rounds, "first_round": max(0, done) + 1})

    def step(self, label: str, round: Round) -> None:
        """Write the numbers of a round."""
        super().step(label, round)
        self._carefully(self._write, label, scalars(round), round.round + 1)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Write the numbers of the summary and finish the run; one that has rounds left was interrupted."""
        super().end(label, summary)
        known = {name: summary[name] for name in ("method", "data", "seed") if name in summary}
        self._carefully(self._write, label, outcome(summary), int(summary.get("rounds_done", 0)), known)
        complete = summary.get("rounds_done", 0) >= summary.get("rounds", 0)
        self._carefully(self._finish, label, "FINISHED" if complete else "KILLED")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Mark what was interrupted, or failed."""
        failed = kind is not None and issubclass(kind, Exception)
        for label in list(self.ids):
            self._carefully(self._finish, label, "FAILED" if failed else "KILLED")

    def _create(self, label: str, known: Mapping[str, Any]) -> None:
        self.ids[label] = self.client.create_run(self.experiment, run_name=label).info.run_id
        self._write(label, {}, 0, known)

    def _write(self, label: str, numbers: Mapping[str, float], step: int, known: Mapping[str, Any] = {}) -> None:
        now = int(1000 * time.time())
        metrics = [self.make_metric(name, value, now, step) for name, value in numbers.items()]
        params = [self.make_param(name, str(value)) for name, value in known.items()]
        self.client.log_batch(self.ids[label], metrics=metrics, params=params)

    def _finish(self, label: str, state: str) -> None:
        self.client.set_terminated(self.ids.pop(label), state)

    def _carefully(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write; warn of the first failure, and write nothing after it."""
        if self.failed:
            return
        try:
            write(*arguments)
        except Exception as error:
            self.failed = True
            log.warning("MLflow failed, so nothing more is logged there: %s", first_line(error))


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).strip().partition("\n")[0]


LOGGERS = {"tensorboard": TensorBoard, "mlflow": MLflow}


def logger(text: str) -> Reporter:
    """The logger that a text describes: `tensorboard:DIR` or `mlflow:URI`."""
    kind, colon, place = text.partition(":")
    if kind not in LOGGERS or not colon or not place:
        raise InputError(f"--log {text} cannot be read; write tensorboard:DIR or mlflow:URI")
    return LOGGERS[kind](place)


class Several(Reporter):
    """Passes on what it is told to several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        super().__init__()
        self.reporters = reporters
        self.opened = ExitStack()

    def __enter__(self) -> Self:
        for reporter in self.reporters:
            self.opened.enter_context(reporter)
        self.opened.enter_context(watch_reading(self.reading))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave all of them."""
        self.opened.__exit__(kind, error, at)

    def begin(self, runs: int, rounds: int) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.begin(runs, rounds)

    def reading(self, what: str, done: int, total: int) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.reading(what, done, total)

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.start(label, rounds, done)

    def step(self, label: str, round: Round) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.step(label, round)

    def fail(self, label: str, reason: str) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.fail(label, reason)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Pass it on."""
        for reporter in self.reporters:
            reporter.end(label, summary)


def with_logs(reporter: Reporter, logs: Sequence[str] | None) -> Reporter:
    """A reporter that also logs wherever `logs` say; the reporter itself where they say nothing."""
    return Several([reporter, *map(logger, logs)]) if logs else reporter
