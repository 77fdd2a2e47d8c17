"""Runs and trials on the nodes of a cluster: the progress of all of them goes to one reporter, their folders lie on
this machine, and what was done when one fails, or this process ends, is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..core.errors import TrainingError
from ..engines.cluster.task_actor import Event, Send
from ..engines.cluster.tasks import OnRay, Task, TaskRunner
from ..runs.api import carry_out
from ..runs.interrupt import catch_interrupt
from ..runs.lock import lock_folder
from ..runs.progress import Reporter
from ..runs.round_loop import Progress
from ..runs.settings import Config
from ..runs.setup import make_plan
from .processes import Job

log = logging.getLogger("idiolect")

Extent = Mapping[str, tuple[int, int]]
"""How many rounds each task has, and how many of them are done, by its label."""


class Follower:
    """Carries out tasks on a cluster and shows how they go on.

    Args:
        tasks: what is done; `add` adds more while they go on.
        place: what each gets of the cluster.
        reporter: receives how they go on.
        extent: how many rounds they have.
    """

    def __init__(self, tasks: Sequence[Task], place: OnRay, reporter: Reporter, extent: Extent) -> None:
        self.reporter, self.extent = reporter, dict(extent)
        self.runner = TaskRunner(tasks, place.pool)
        self.said: set[str] = set()

    def add(self, task: Task, rounds: int) -> None:
        """Another task, of so many rounds."""
        self.extent[task.label] = (rounds, 0)
        self.runner.add(task)

    def ends(self) -> Iterator[tuple[Task, Event]]:
        """How each task ended: `done`, or `failed` with an error. The first Ctrl-C or SIGTERM lets every run finish its
        round, and then takes effect."""
        was_interrupted = False
        with ExitStack() as stack:
            request = stack.enter_context(catch_interrupt())
            self.runner.is_stopping = request
            locks: dict[str, ExitStack] = {}
            for task, event in self.runner.run():
                if event.kind == "began" and task.label not in locks:
                    locks[task.label] = stack.enter_context(ExitStack())
                    locks[task.label].enter_context(lock_folder(task.folder))
                if event.kind == "began":
                    self.reporter.start(task.label, *self.extent[task.label])
                elif isinstance(event.value, Progress):
                    self.reporter.step(task.label, event.value)
                elif event.kind == "said":
                    self.say(str(event.value))
                elif event.kind in ("done", "failed"):
                    locks[task.label].close()
                    yield task, event
                else:
                    was_interrupted = True
        request.pass_on()
        if was_interrupted or request():
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        """Log something once."""
        if text not in self.said:
            self.said.add(text)
            log.warning("%s", text)


def carry_out_elsewhere(
    jobs: Sequence[Job], objects: Mapping[str, Mapping[str, Any]], place: OnRay, reporter: Reporter
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The summaries of jobs with these objects, by label; and, by method, why some learned nothing, of which no other
    run is begun."""
    summaries: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    of = {job.label: job.config.method for job in jobs}
    tasks = [Task(job.label, run_on_node, (job.config, objects[job.label]), job.folder) for job in jobs]
    follower = Follower(tasks, place, reporter, {job.label: (job.config.rounds, job.first) for job in jobs})
    for task, event in follower.ends():
        if event.kind == "done":
            summaries[task.label] = event.value
            reporter.end(task.label, event.value)
        elif isinstance(event.value, TrainingError):
            reason = failed[of[task.label]] = str(event.value)
            follower.runner.drop(lambda other: of[other.label] in failed)
            log.warning("%s: %s", task.label, reason)
            reporter.fail(task.label, reason)
        else:
            raise event.value
    return summaries, failed


def run_on_node(argument: tuple[Config, Mapping[str, Any]], folder: Path, send: Send) -> dict[str, Any]:
    """Carry out a run in a folder on a node: its summary."""
    config, objects = argument
    result = carry_out(make_plan(config, objects), config, folder, send)
    summary: dict[str, Any] = result.summary
    result.store.close()
    return summary
