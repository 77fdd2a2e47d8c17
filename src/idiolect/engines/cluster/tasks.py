"""Many tasks on a cluster, such as the runs of a comparison: each goes to an actor anywhere, and its folder is kept on
the driver. A task whose node dies goes on elsewhere from the files that it sent last; what is done is done once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import ClusterError
from ...core.options import Options, option
from ...core.registry import Registry
from .connection import check_cluster, find_address
from .messages import Reply
from .pool import TRIES, ActorPool, Member, name_reason
from .shipping import ship
from .task_actor import Event, Target, TaskActor, read_files, write_files

PASSED_ON = ("IDIOLECT_DATA", "IDIOLECT_HOME")
"""What of the driver's environment holds on nodes that say nothing themselves."""
WAIT = 1.0


@dataclass(frozen=True)
class Task:
    """A function that is called on a node, with an argument, and the folder on the driver that its files belong to."""

    label: str
    target: Target
    argument: Any
    folder: Path | None = None


@dataclass
class Entry:
    """A task that is not done: how often it was lost, and its folder's files as they are on the driver."""

    task: Task
    lost: int = 0
    is_stopped: bool = False
    reference: Any = field(default=None, repr=False)


Happening = tuple[Task, Event]


class TaskRunner:
    """Carries out tasks.

    Args:
        tasks: what is done; the first begins first.
        pool: gives the actors.
        is_stopping: whether all tasks are to end after their rounds.
    """

    def __init__(
        self, tasks: Sequence[Task], pool: Callable[[], ActorPool], is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.waiting = deque(Entry(task) for task in tasks)
        self.running: dict[Member, Entry] = {}
        self.make_pool, self.is_stopping = pool, is_stopping

    def add(self, task: Task) -> None:
        """Another task, while others go on."""
        self.waiting.append(Entry(task))

    def drop(self, unwanted: Callable[[Task], bool]) -> None:
        """Do not begin some tasks."""
        self.waiting = deque(entry for entry in self.waiting if not unwanted(entry.task))

    def run(self) -> Iterator[Happening]:
        """Carry out all tasks: what they say, how they begin (`began`) and end."""
        with ExitStack() as stack:
            self.pool = pool = self.make_pool()
            stack.callback(pool.stop)
            pool.most = len(self.waiting)
            pool.prepare({name: os.environ[name] for name in PASSED_ON if name in os.environ}, os.getcwd())
            while self.waiting or self.running:
                if self.is_stopping():
                    self.waiting.clear()
                    self._interrupt()
                yield from self._step()

    def _step(self) -> Iterator[Happening]:
        pool, ray = self.pool, self.pool.ray
        if self.waiting:
            pool.fill()
        for member in pool.members:
            if member not in self.running and self.waiting:
                yield self._begin(member, self.waiting.popleft())
        references = {entry.reference: member for member, entry in self.running.items()}
        if not references and not self.waiting:
            return
        ready, _ = ray.wait([*references, *pool.starting], num_returns=1, timeout=WAIT)
        for reference in ready:
            if reference in pool.starting:
                pool.admit(reference)
            else:
                yield from self._listen(references[reference], reference)
        pool.require_some()

    def _begin(self, member: Member, entry: Entry) -> Happening:
        folder = entry.task.folder
        files = None if folder is None else read_files(folder)
        entry.reference = member.handle.begin.remote(ship((entry.task.target, entry.task.argument)), files)
        self.running[member] = entry
        return entry.task, Event("began", member.node.name)

    def _listen(self, member: Member, reference: Any) -> Iterator[Happening]:
        entry = self.running[member]
        try:
            answer: Reply | list[Event] = self.pool.ray.get(reference)
        except self.pool.ray.exceptions.RayError as error:
            self._lose(member, entry, name_reason(error))
            self.pool.remove(member, name_reason(error))
            return
        if isinstance(answer, Reply):
            if answer.error is not None:
                raise answer.error
            answer = []
        for event in answer:
            if event.kind == "files":
                assert entry.task.folder is not None
                write_files(entry.task.folder, event.value)
                continue
            if event.kind == "died" and not self.is_stopping():
                reason = f"its process ended with exit code {event.value}; was there enough memory?"
                self._lose(member, entry, reason)
                return
            yield entry.task, event
            if event.kind != "said":
                del self.running[member]
                return
        entry.reference = member.handle.poll.remote()

    def _lose(self, member: Member, entry: Entry, reason: str) -> None:
        """Put a task back that was lost with its process."""
        del self.running[member]
        entry.lost += 1
        if entry.lost >= TRIES:
            raise ClusterError(
                f"{entry.task.label} was lost {TRIES} times ({reason}); what is done is kept, so give each run more"
                " cores or memory, as in --on 'ray(cpus=4)', and call the same again"
            )
        self.pool.log_once(f"{entry.task.label} was lost on node {member.node.name} ({reason}) and goes on elsewhere")
        self.waiting.appendleft(entry)

    def _interrupt(self) -> None:
        """Ask all tasks to stop after their rounds, once."""
        for member, entry in self.running.items():
            if not entry.is_stopped:
                entry.is_stopped = True
                member.handle.interrupt.remote()


@dataclass(frozen=True)
class Place(Options):
    """Where several runs are carried out."""


places: Registry[Place] = Registry("place", Place)


@places.register("here")
@dataclass(frozen=True)
class Here(Place):
    """On this machine."""


@places.register("ray")
@dataclass(frozen=True)
class OnRay(Place):
    """On a cluster, each run on any of its nodes."""

    runs: int | None = option(None, min=1, help="runs at a time; none is as many as the cluster has room for")
    cpus: float = option(1.0, above=0.0, help="cores of each run")
    gpus: float = option(0.0, min=0.0, help="GPUs of each run, or a share of one")
    wait: float = option(300.0, min=0.0, help="seconds to wait where no node is left")

    def check(self) -> None:
        """Raise an error if there is no cluster, or none that has what a run needs."""
        check_cluster(self.runs, self.cpus, self.gpus, "runs")

    def pool(self) -> ActorPool:
        """The actors that carry out runs."""
        return ActorPool(TaskActor, self.runs, self.cpus, self.gpus, self.wait)


def find_place(text: str | None) -> OnRay | None:
    """Where runs are carried out: on a cluster, if one is named here or by the environment; None is on this machine.
    What is wrong with the cluster is said now, before anything is written."""
    place = places.build(text or ("ray" if find_address() else "here"))
    if not isinstance(place, OnRay):
        return None
    place.check()
    return place
