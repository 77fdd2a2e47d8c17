"""Worker processes, one thread each: the fastest way for convolutions on a CPU. Clients are handed out as workers
become free; slots travel through shared memory; networks run in the memory format their kernels like best."""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from ..contract import Download, Slots, Upload
from ..core import tree
from ..core.allocator import tune_allocator
from ..core.errors import IdiolectError
from ..kernels import channels_last, find_dense, speed_up
from .client_evaluation import evaluate_group
from .client_round import train
from .flat import Layout
from .loop import Fetch, Outcomes, Scores, States
from .machine import cores, threads
from .plan import Plan
from .shared_memory import SharedMemory
from .stack_size import limit_chunk
from .stacking import ignore_slow_operations, load_transforms, train_stack

log = logging.getLogger("idiolect")

# Evaluation groups clients that share a model; the size is fixed, so that results do not depend on the workers.
EVAL_GROUP = 8


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


class Workers:
    """A pool of processes that outlives rounds.

    Args:
        plan: what is computed.
        count: number of processes; by default one per core, or one per GPU where tensors live on GPUs.
        chunk: how many clients to stack and trace at once; 0 takes them one by one.

    Attributes:
        unstacked: why clients were run one by one though they should have been stacked, if they were.
    """

    def __init__(self, plan: Plan, count: int | None = None, chunk: int = 0) -> None:
        self.plan, self.count, self.chunk = plan, count or len(list_devices(plan.device)) or cores(), chunk
        self.unstacked = ""
        self._serial = 0
        self._started = False

    def note_unstacked(self, problem: str) -> None:
        """Remember, and say once, why clients are run one by one where they should have been stacked."""
        if problem and not self.unstacked:
            self.unstacked = problem
            log.warning("the vector engine runs these clients one by one: %s", problem)

    def _start(self) -> None:
        # A forked worker inherits data and modules without copies, but not a GPU's state.
        method = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"
        context: Any = multiprocessing.get_context(method)
        if self.chunk and not all(find_dense(task) for task in self.plan.tasks):
            load_transforms()
        # What is found here, and the kernels that are loaded and called meanwhile, forked workers inherit.
        prepared = prepare(self.plan, self.chunk) if method == "fork" else None
        devices = list_devices(self.plan.device) or [self.plan.device]
        self._shared = SharedMemory()
        self._inboxes = [SharedMemory() for _ in range(2 * self.count + 1)]
        self._outboxes = [SharedMemory() for _ in range(self.count)]
        self._jobs, self._results = context.SimpleQueue(), context.SimpleQueue()
        self._processes = [
            context.Process(
                target=serve,
                args=(
                    number,
                    devices[number % len(devices)],
                    self.plan,
                    prepared,
                    self.chunk,
                    self._shared,
                    self._inboxes,
                    box,
                    self._jobs,
                    self._results,
                ),
                daemon=True,
            )
            for number, box in enumerate(self._outboxes)
        ]
        for process in self._processes:
            process.start()
        self._started = True

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """Run the clients' part of one round; results come as they are ready, in memory that the next round uses."""
        groups = group_ids(self.plan, list(states), self.chunk, 4 * self.count)
        fetch = lambda wanted: {i: states[i] for i in wanted}  # noqa: E731
        for worker, results in self._drive("train", round, groups, fetch, download, False):
            box = self._outboxes[worker]
            for index, state, slots, masks, outcome in results:
                self.note_unstacked(outcome.unstacked)
                upload = None if slots is None else Upload(self._take(box, slots), self._take(box, masks))
                yield index, replace(outcome, state=self._take(box, state), upload=upload)

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Evaluate clients group by group."""
        for _, results in self._drive("evaluate", round, eval_groups(ids), states, download, unseen):
            yield from results

    def _drive(
        self,
        kind: str,
        round: int,
        groups: Sequence[Sequence[int]],
        states: Fetch,
        download: Download,
        unseen: bool,
    ) -> Iterator[tuple[int, Any]]:
        """Keep all workers busy with groups of clients, with a bounded number of groups in memory."""
        if not self._started:
            self._start()
        self._serial += 1
        self._shared.reset()
        shared = self._shared.write(download.shared)
        free, waiting, pending = list(range(len(self._inboxes))), iter(groups), 0
        while True:
            for group in islice(waiting, len(free)):
                inbox = free.pop()
                self._inboxes[inbox].reset()
                group_states = states(group)
                clients = [
                    (i, self._put(inbox, group_states[i]), self._put(inbox, download.each.get(i, {}))) for i in group
                ]
                self._jobs.put(Job(kind, self._serial, round, inbox, shared, clients, unseen))
                pending += 1
            if pending == 0:
                return
            worker, inbox, results = self._receive()
            pending -= 1
            yield worker, results
            free.append(inbox)

    def _put(self, inbox: int, slots: Slots | None) -> Any:
        return None if slots is None else self._inboxes[inbox].write(slots)

    def _take(self, box: SharedMemory, layout: Layout) -> Slots:
        return tree.to_device(box.read(layout), self.plan.device)

    def _receive(self) -> tuple[int, int, Any]:
        while not self._results._reader.poll(1.0):
            for process in self._processes:
                if not process.is_alive():
                    raise IdiolectError(
                        f"a worker process ended unexpectedly (exit code {process.exitcode}); "
                        f"if memory ran out, use fewer workers or smaller batches; the rounds before this one are saved"
                    )
        worker, inbox, results, error = self._results.get()
        if error is not None:
            raise error
        return worker, inbox, results

    def close(self) -> None:
        """Stop the processes."""
        if not self._started:
            return
        for _ in self._processes:
            self._jobs.put(None)
        for process in self._processes:
            process.join(timeout=2)
            process.kill()
        self._started = False


def group_ids(plan: Plan, ids: Sequence[int], chunk: int, parts: int) -> list[Sequence[int]]:
    """The clients that train together on one worker, those with most samples first; stacks depend on no number
    of `parts`."""
    ordered = sorted(sorted(ids), key=lambda i: -len(plan.data.clients[i]))
    if chunk:
        return stack_groups(ordered, chunk)
    return shrinking_groups(ordered, parts, largest=8)


def stack_groups(ids: Sequence[int], chunk: int) -> list[Sequence[int]]:
    """Clients that are stacked, at most `chunk`. How many are does not depend on the number of workers, so that this
    changes no bit, but an eighth of all is the most, so that there are stacks for several.

    >>> [[len(group) for group in stack_groups(range(n), 16)] for n in (10, 100)]
    [[4, 4, 2], [13, 13, 13, 13, 13, 12, 8, 5, 4, 4, 2]]
    >>> len(stack_groups(range(1000), 16)[0]), [len(group) for group in stack_groups(range(10), 3)]
    (16, [3, 3, 3, 1])
    """
    return shrinking_groups(ids, 3, min(chunk, max(4, -(-len(ids) // 8))), least=4)


def eval_groups(ids: Sequence[int]) -> list[Sequence[int]]:
    """The clients that are evaluated together."""
    ordered = sorted(ids)
    return [ordered[at : at + EVAL_GROUP] for at in range(0, len(ordered), EVAL_GROUP)]


def shrinking_groups(ids: Sequence[int], parts: int, largest: int, least: int = 1) -> list[Sequence[int]]:
    """Groups that become smaller, each one of so many parts of what is left, so that all workers end at about the same
    time.

    >>> [len(group) for group in shrinking_groups(range(100), 3, largest=13, least=4)]
    [13, 13, 13, 13, 13, 12, 8, 5, 4, 4, 2]
    """
    groups, left = [], ids
    while left:
        size = min(max(least, -(-len(left) // parts)), largest)
        groups.append(left[:size])
        left = left[size:]
    return groups


# -- in the worker -------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A plan whose networks are made fast, and whether they want images and kernels with channels last in memory."""

    plan: Plan
    channels_last: bool


def list_devices(device: str) -> list[str]:
    """The devices that processes share where tensors live on no device in particular; empty if that is one.

    >>> list_devices("cpu"), list_devices("cuda:1")
    ([], ['cuda:1'])
    """
    if device == "cuda":
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [] if torch.device(device).type == "cpu" else [device]


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


def serve(
    number: int, device: str, plan: Plan, prepared: Prepared | None, chunk: int, shared: SharedMemory,
    inboxes: list[SharedMemory], outbox: SharedMemory, jobs: Any, results: Any,
) -> None:  # fmt: skip
    """A worker's life: take a job, do it, report where the results lie; until there are none."""
    torch.set_num_threads(1)
    gc.freeze()  # what exists by now stays: no collection need look at it, nor copy the pages it shares
    tune_allocator()
    follow_parent()
    ignore_slow_operations()
    plan, last = prepared or prepare(place_plan(plan, device), chunk)
    chunk = limit_chunk(plan, chunk)
    read = partial(read_slots, device=plan.device, rearrange=last)
    serial, message, download = -1, -1, {}
    while (job := jobs.get()) is not None:
        try:
            if job.serial != message:
                download, message = read(shared, job.shared), job.serial
            if job.kind == "train" and job.serial != serial:
                outbox.reset()
                serial = job.serial
            inbox = inboxes[job.inbox]
            states = {i: None if state is None else read(inbox, state) for i, state, _ in job.clients}
            message_to = Download(download, {i: read(inbox, layout) for i, _, layout in job.clients})
            if job.kind == "train":
                done = do_train(plan, chunk, job.round, states, message_to, outbox)
            else:
                done = evaluate_group(plan, job.round, states, message_to, job.unseen)
            results.put((number, job.inbox, done, None))
        except Exception as error:
            results.put((number, job.inbox, None, make_portable(error)))


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
