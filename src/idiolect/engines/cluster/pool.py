"""The actors of a cluster as the driver sees them: those that are on their way, those that have answered, and what
each was assigned. One that dies, hangs or loses an answer is replaced, and what it had is done again elsewhere."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import ClusterError
from .connection import Connection, compare_processors, describe_node, require_like, require_resources
from .messages import Node, Reply

log = logging.getLogger("idiolect")

CHECK_EVERY = 5.0
"""Seconds between looks at the size of the cluster."""
TRIES = 3
"""How often a group, or the start of an actor, may fail."""


@dataclass(eq=False)
class Member:
    """An actor that has answered: its handle, its node, and the groups that it was assigned with the references of
    their answers; it works on the first of them since `since`."""

    handle: Any
    node: Node
    assigned: deque[tuple[Any, int]] = field(default_factory=deque)
    since: float = 0.0
    last: int = -1
    alive: bool = True

    def assign(self, reference: Any, group: int) -> None:
        """Have it work on a group after those that it has."""
        self.since = self.since if self.assigned else time.monotonic()
        self.assigned.append((reference, group))
        self.last = group

    def finish(self, reference: Any) -> None:
        """An answer is there."""
        self.assigned = deque(entry for entry in self.assigned if entry[0] != reference)
        self.since = time.monotonic()


class ActorPool:
    """All actors of a run, or of several runs one after another.

    Args:
        kind: the class of the actors; `start` gets them ready, and is told what `prepare` was.
        actors: how many there should be; none is as many as the cluster has room for, now and later.
        cpus, gpus: what each reserves.
        wait: seconds to wait where no actor is left.
    """

    def __init__(
        self, kind: type, actors: int | None = None, cpus: float = 1.0, gpus: float = 0.0, wait: float = 300.0
    ) -> None:
        self.actors, self.cpus, self.gpus, self.wait = actors, cpus, gpus, wait
        self.arguments: tuple[Any, ...] = ()
        self.most: int | None = None
        self.connection = Connection()
        self.ray = self.connection.ray
        self.here, self.logged = describe_node(), set[str]()
        self.members: list[Member] = []
        self.starting: dict[Any, Any] = {}
        self.failures, self.empty_since, self.checked = 0, 0.0, 0.0
        try:
            self.wanted = require_resources(self.connection, actors, cpus, gpus)
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
            self.kind = self.ray.remote(**options, scheduling_strategy="SPREAD")(kind)
        except BaseException:
            self.connection.close()
            raise

    def prepare(self, *arguments: Any) -> None:
        """Take up other work, for which these arguments get an actor ready."""
        self.arguments, known = arguments, [*(member.handle for member in self.members), *self.starting.values()]
        self.members, self.starting = [], {}
        for handle in known:
            self._start(handle)

    def _start(self, handle: Any) -> None:
        self.starting[handle.start.remote(*self.arguments)] = handle

    def fill(self) -> None:
        """Ask for the actors that are missing; the cluster may have grown or shrunk."""
        now = time.monotonic()
        if self.actors is None and now - self.checked > CHECK_EVERY:
            self.checked = now
            total = self.connection.resources()
            sizes = [(total.get("CPU", 0.0), self.cpus), (total.get("GPU", 0.0), self.gpus)]
            self.wanted = max(1, min((int(have // each) for have, each in sizes if each > 0), default=1))
        wanted = self.wanted if self.most is None else min(self.wanted, self.most)
        while len(self.members) + len(self.starting) < wanted:
            self._start(self.kind.remote())

    def admit(self, reference: Any) -> None:
        """An actor has answered for the first time, or has failed to."""
        handle = self.starting.pop(reference)
        try:
            reply: Reply = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            if is_node_lost(error):
                return  # others take its place, as soon as there is room
            self.failures += 1
            if self.failures >= TRIES or getattr(error, "actor_init_failed", False):
                raise ClusterError(explain_start(error)) from error
            return
        self.log_warnings(reply)
        node: Node = reply.result
        require_like(node, self.here)  # before its error, which may come from the difference
        if reply.error is not None:
            raise reply.error
        self.log_once(compare_processors([node], self.here))
        self.failures, self.empty_since = 0, 0.0
        self.members.append(Member(handle, node))

    def log_warnings(self, reply: Reply) -> None:
        """Say what was logged elsewhere, once."""
        for text in reply.warnings:
            self.log_once(text)

    def log_once(self, text: str) -> None:
        """Log something once."""
        if text and text not in self.logged:
            self.logged.add(text)
            log.warning("%s", text)

    def remove(self, member: Member, reason: str) -> list[int]:
        """Give an actor up: the groups that it was assigned."""
        log.warning("an actor on node %s is given up: %s; its work goes to another", member.node.name, reason)
        member.alive = False
        self.members = [other for other in self.members if other is not member]
        groups = [group for _, group in member.assigned]
        member.assigned.clear()
        try:
            self.ray.kill(member.handle, no_restart=True)
        except Exception:
            log.debug("it could not be killed")
        return groups

    def require_some(self) -> None:
        """Raise an error if there has been no actor for too long."""
        if self.members:
            self.empty_since = 0.0
            return
        now = time.monotonic()
        self.empty_since = self.empty_since or now
        if now - self.empty_since > self.wait:
            total = self.connection.resources()
            raise ClusterError(
                f"no actor of the cluster has answered for {self.wait:g} s (it has {total.get('CPU', 0.0):g} cores and"
                f" {total.get('GPU', 0.0):g} GPUs; an actor needs {self.cpus:g} and {self.gpus:g}); the rounds before"
                " this one are saved, so start nodes, or free some, and resume, on one machine with --engine workers"
            )

    def stop(self) -> None:
        """End all actors and leave the cluster."""
        for handle in [*(member.handle for member in self.members), *self.starting.values()]:
            try:
                self.ray.kill(handle, no_restart=True)
            except Exception:
                log.debug("an actor could not be killed")
        self.members, self.starting = [], {}
        self.connection.close()


def explain_start(error: Exception) -> str:
    """Why no actor could start, in a sentence."""
    text = str(error)
    if "No module named" in text or "ModuleNotFoundError" in text:
        lines = [line.strip() for line in text.splitlines() if "No module named" in line]
        reason = lines[-1] if lines else "a module is missing"
        return f"an actor cannot start ({reason}); install the same Idiolect, with the extra cluster, on every node"
    if is_out_of_memory(error):
        return (
            "actors cannot start: their node has too little memory, or what Ray counts as too little"
            " (RAY_memory_usage_threshold, where Ray is started); free some, or use fewer actors per node, as in"
            " cpus=2; the rounds before this one are saved"
        )
    line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    return f"actors cannot start: {line}; look at the node's memory and at `ray status`"


def is_node_lost(error: Exception) -> bool:
    """Whether an actor was lost with its node, which says nothing about the actor.

    >>> is_node_lost(RuntimeError("The actor died because its node has died.")), is_node_lost(RuntimeError("killed"))
    (True, False)
    """
    return "node has died" in str(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an actor was ended because its node had too little memory.

    >>> is_out_of_memory(RuntimeError("worker(s) were killed due to the node running low on memory"))
    True
    """
    text = str(error).lower()
    return "OutOfMemory" in type(error).__name__ or "out of memory" in text or "low on memory" in text


def name_reason(error: Exception) -> str:
    """What happened to an answer, in a few words."""
    if is_out_of_memory(error):
        return "its node ran out of memory"
    if type(error).__name__ == "GetTimeoutError":
        return "it gave no answer in time"
    return type(error).__name__.removesuffix("Error")
