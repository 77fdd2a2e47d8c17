"""Worker processes, one thread each: the fastest way for convolutions on a CPU. Clients are handed out as workers
become free; slots travel through shared memory; networks run in the memory format their kernels like best."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from ..contract import Download, Slots, Upload
from ..core import tree
from ..core.errors import IdiolectError
from ..kernels import find_dense
from .flat import Layout
from .loop import Fetch, Outcomes, Scores, States
from .machine import cores
from .plan import Plan
from .shared_memory import SharedMemory
from .stacking import load_transforms
from .worker import Answer, Job, prepare, serve

log = logging.getLogger("idiolect")

# Evaluation groups clients that share a model; the size is fixed, so that results do not depend on the workers.
EVAL_GROUP = 8


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
        self._shared = SharedMemory()
        self._inboxes = [SharedMemory() for _ in range(2 * self.count + 1)]
        self._outboxes = [SharedMemory() for _ in range(self.count)]
        if self.chunk and not all(find_dense(task) for task in self.plan.tasks):
            load_transforms()
        self._start_workers()
        self._started = True

    def _start_workers(self) -> None:
        # A forked worker inherits data and modules without copies, but not a GPU's state.
        method = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"
        context: Any = multiprocessing.get_context(method)
        # What is found here, and the kernels that are loaded and called meanwhile, forked workers inherit.
        prepared = prepare(self.plan, self.chunk) if method == "fork" else None
        devices = list_devices(self.plan.device) or [self.plan.device]
        self._jobs, self._answers = context.SimpleQueue(), context.SimpleQueue()
        memory, queues = (self._shared, self._inboxes), (self._jobs, self._answers)
        self._processes = []
        for number, box in enumerate(self._outboxes):
            whose = (number, devices[number % len(devices)], self.plan, prepared, self.chunk)
            self._processes.append(context.Process(target=serve, args=(*whose, *memory, box, *queues), daemon=True))
        for process in self._processes:
            process.start()

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
                self._submit(Job(kind, self._serial, round, inbox, shared, clients, unseen))
                pending += 1
            if pending == 0:
                return
            answer = self._receive()
            if answer.error is not None:
                raise answer.error
            pending -= 1
            yield answer.worker, answer.results
            free.append(answer.inbox)

    def _put(self, inbox: int, slots: Slots | None) -> Any:
        return None if slots is None else self._inboxes[inbox].write(slots)

    def _take(self, box: SharedMemory, layout: Layout) -> Slots:
        return tree.to_device(box.read(layout), self.plan.device)

    def _submit(self, job: Job) -> None:
        self._jobs.put(job)

    def _receive(self) -> Answer:
        while not self._answers._reader.poll(1.0):
            for process in self._processes:
                if not process.is_alive():
                    raise IdiolectError(
                        f"a worker process ended unexpectedly (exit code {process.exitcode}); "
                        f"if memory ran out, use fewer workers or smaller batches; the rounds before this one are saved"
                    )
        answer: Answer = self._answers.get()
        return answer

    def close(self) -> None:
        """Stop the processes."""
        if self._started:
            self._stop_workers()
        self._started = False

    def _stop_workers(self) -> None:
        for _ in self._processes:
            self._jobs.put(None)
        for process in self._processes:
            process.join(timeout=2)
            process.kill()


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


def list_devices(device: str) -> list[str]:
    """The devices that processes share where tensors live on no device in particular; empty if that is one.

    >>> list_devices("cpu"), list_devices("cuda:1")
    ([], ['cuda:1'])
    """
    if device == "cuda":
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [] if torch.device(device).type == "cpu" else [device]
