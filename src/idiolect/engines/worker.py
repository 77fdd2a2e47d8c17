"""What a worker does, wherever it is: it takes jobs whose slots lie in shared memory, and leaves the results there.
The processes that hold workers, and who gets which job, are in `processes.py`."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..contract import Download, Slots
from ..core import tree
from ..core.allocator import tune_allocator
from ..core.errors import IdiolectError
from ..kernels import channels_last, speed_up
from .client_evaluation import evaluate_group
from .client_round import train
from .flat import Layout
from .loop import Outcomes, States
from .machine import threads
from .plan import Plan
from .shared_memory import SharedMemory
from .stack_size import limit_chunk
from .stacking import ignore_slow_operations, train_stack


@dataclass(frozen=True)
class Job:
    """Some clients' work: where their slots lie and what is to be done."""

    kind: str
    serial: int
    round: int
    inbox: int
    shared: Layout
    clients: list[tuple[int, Layout | None, Layout]]
    unseen: bool = False


class Answer(NamedTuple):
    """What a worker says of a job: its number, the inbox that is free again, and the results or what went wrong."""

    worker: int
    inbox: int
    results: Any
    error: Exception | None


class Prepared(NamedTuple):
    """A plan whose networks are made fast, and whether they want images and kernels with channels last in memory."""

    plan: Plan
    channels_last: bool


def place_plan(plan: Plan, device: str) -> Plan:
    """A plan of a process's own, with its networks on a device."""
    if device == plan.device:
        return plan
    for task in plan.tasks:
        task.net.to(device)
    return replace(plan, training=replace(plan.training, device=device))


def prepare(plan: Plan, chunk: int) -> Prepared:
    """A plan as workers carry it out, on copies of its networks; networks that are traced cannot be rearranged."""
    _ = plan.nets
    if chunk or plan.device != "cpu":
        return Prepared(plan, False)
    with threads(1):
        fast = replace(plan, tasks=tuple(task.twin() for task in plan.tasks))
        last = [speed_up(task) for task in fast.tasks]
    _ = fast.nets
    return Prepared(fast, all(last))


class Worker:
    """Does jobs: takes slots out of shared memory, carries out the clients' work, and says where the results lie.

    Args:
        number: its number among the workers.
        prepared: what is computed.
        chunk: how many clients to stack and trace at once; 0 takes them one by one.
        shared, inboxes: the memory that others write to, for all of a round's clients and for the clients of a job.
        outbox: the memory that it writes to.
    """

    def __init__(
        self, number: int, prepared: Prepared, chunk: int, shared: SharedMemory, inboxes: Sequence[SharedMemory],
        outbox: SharedMemory,
    ) -> None:  # fmt: skip
        self.number, self.chunk, self.shared, self.inboxes, self.outbox = number, chunk, shared, inboxes, outbox
        self.plan = prepared.plan
        self.read = partial(read_slots, device=self.plan.device, rearrange=prepared.channels_last)
        self.serial, self.message = -1, -1
        self.common: Slots = {}

    def work(self, job: Job) -> Answer:
        """Do a job; what goes wrong is part of the answer."""
        try:
            return Answer(self.number, job.inbox, self._work(job), None)
        except Exception as error:
            return Answer(self.number, job.inbox, None, make_portable(error))

    def _work(self, job: Job) -> Any:
        if job.serial != self.message:
            self.common, self.message = self.read(self.shared, job.shared), job.serial
        if job.kind == "train" and job.serial != self.serial:
            self.outbox.reset()
            self.serial = job.serial
        inbox = self.inboxes[job.inbox]
        states = {i: None if state is None else self.read(inbox, state) for i, state, _ in job.clients}
        message = Download(self.common, {i: self.read(inbox, layout) for i, _, layout in job.clients})
        if job.kind == "train":
            return do_train(self.plan, self.chunk, job.round, states, message, self.outbox)
        return evaluate_group(self.plan, job.round, states, message, job.unseen)


def serve(
    number: int, device: str, plan: Plan, prepared: Prepared | None, chunk: int, shared: SharedMemory,
    inboxes: list[SharedMemory], outbox: SharedMemory, jobs: Any, results: Any,
) -> None:  # fmt: skip
    """The life of a worker process: take a job, do it, report where the results lie; until there are none."""
    torch.set_num_threads(1)
    gc.freeze()  # what exists by now stays: no collection need look at it, nor copy the pages it shares
    tune_allocator()
    follow_parent()
    ignore_slow_operations()
    prepared = prepared or prepare(place_plan(plan, device), chunk)
    worker = Worker(number, prepared, limit_chunk(prepared.plan, chunk), shared, inboxes, outbox)
    while (job := jobs.get()) is not None:
        results.put(worker.work(job))


def train_clients(plan: Plan, chunk: int, round: int, states: States, download: Download) -> Outcomes:
    """Run clients' parts of a round, in stacks or one by one."""
    if chunk:
        return train_stack(plan, round, states, download, chunk)
    return ((i, train(plan, i, round, state, download.of(i))) for i, state in states.items())


def do_train(
    plan: Plan, chunk: int, round: int, states: States, download: Download, outbox: SharedMemory
) -> list[tuple[Any, ...]]:
    """Run clients' parts of a round; their slots go to the worker's outbox."""
    done = []
    for index, outcome in train_clients(plan, chunk, round, states, download):
        upload = outcome.upload
        slots = None if upload is None else outbox.write(upload.slots)
        masks = None if upload is None else outbox.write(upload.masks)
        done.append((index, outbox.write(outcome.state), slots, masks, replace(outcome, state={}, upload=None)))
    return done


def read_slots(memory: SharedMemory, layout: Layout, device: str, rearrange: bool) -> Slots:
    """Slots out of shared memory on a device, on the CPU in place; convolution kernels, if asked, in the memory format
    that is fastest."""
    return suit_worker(memory.read(layout), device, rearrange)


def suit_worker(slots: Slots, device: str, rearrange: bool) -> Slots:
    """Slots on a device; convolution kernels, if asked, in the memory format that is fastest."""
    slots = tree.to_device(slots, device)
    return {slot: tree.map(channels_last, leaves) for slot, leaves in slots.items()} if rearrange else slots


def follow_parent() -> None:
    """Leave interrupts to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:  # it ended before the line above
            os._exit(1)


def make_portable(error: Exception) -> Exception:
    """An exception that survives the way to another process, with its notes."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, IdiolectError):
        return type(error)(f"{error}{notes}")
    return RuntimeError(f"{type(error).__name__}: {error}{notes}")
