"""The worker of a cluster: a process anywhere that trains and evaluates groups of clients with the same code as the
workers of one machine, one thread each, and adds up what they sent."""

from __future__ import annotations

import gc
import logging
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ...contract import Upload
from ...core import tree
from ...core.allocator import tune_allocator
from ...core.errors import DataError
from ...core.tree import Slots
from ...kernels import find_dense
from ..client_evaluation import evaluate_group
from ..flat import Packed, pack, unpack
from ..plan import Plan
from ..slots import UploadSums
from ..stack_size import limit_chunk
from ..stacking import ignore_slow_operations, load_transforms
from ..uploads import inspect
from ..worker import Prepared, prepare, suit_worker, train_clients
from .connection import describe_node, find_gpu_share
from .messages import Adding, Job, Reply, SumsBySlot, Trained, guard, open_job, pack_sums, unpack_sums
from .shipping import Shipped, unship

ON_ALL_NODES = "each node reads such data itself: have the same files at the same place on all, and resume"


class ClientActor:
    """Carries out clients' work; nothing that it does outlives its answer but the uploads of the newest round."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        tune_allocator()
        ignore_slow_operations()
        self.node, self.log = describe_node(), Warnings()
        self.prepared: Prepared

    def start(self, shipped: Shipped, chunk: int, where: str) -> Reply:
        """Get ready for a plan, of whose clients `chunk` are stacked at once, and say where this is; in the driver's
        working folder if it is here, too, since data may be read from there."""
        with suppress(OSError):
            os.chdir(where)
        _, error = guard(lambda: self._start(shipped, chunk), self.node.name)
        return Reply(self.node, error, self.log.take())

    def _start(self, shipped: Shipped, chunk: int) -> None:
        try:
            plan: Plan = unship(shipped)
        except OSError as error:
            raise DataError(f"the data cannot be opened: {error}; {ON_ALL_NODES}") from error
        if chunk and not all(find_dense(task) for task in plan.tasks):
            load_transforms()
        self.prepared, self.chunk = prepare(plan, chunk), limit_chunk(plan, chunk, find_gpu_share())
        self.serial, self.message, self.common = -1, -1, Slots()
        self.uploads, self.summands = dict[int, Upload](), dict[int, Upload]()
        gc.freeze()

    def process(self) -> int:
        """The number of this process."""
        return os.getpid()

    def work(self, job: Job, common: Packed) -> Reply:
        """Do a job."""
        result, error = guard(lambda: self._read_and_work(job, common), self.node.name)
        return Reply(result, error, self.log.take())

    def _read_and_work(self, job: Job, common: Packed) -> Any:
        try:
            return self._work(job, common)
        except DataError as error:
            if isinstance(error.__cause__, OSError):
                error.add_note(ON_ALL_NODES)
            raise

    def _work(self, job: Job, common: Packed) -> Any:
        plan = self.prepared.plan
        if job.serial != self.message:
            self.common, self.message = self._suit((unpack(common)[0]) or {}), job.serial
        states, download = open_job(job, self.common, self._suit)
        if job.kind == "evaluate":
            return evaluate_group(plan, job.round, states, download, job.unseen)
        if job.serial != self.serial:
            self.uploads, self.summands, self.serial = {}, {}, job.serial
        outcomes, slots = [], list[Slots | None]()
        for index, outcome in train_clients(plan, self.chunk, job.round, states, download):
            upload, slim = outcome.upload, replace(outcome, state={}, upload=None)
            if upload is not None and job.keep:
                known = plan.tasks[plan.server_network(index)].initial["params"]
                self.uploads[index] = upload = Upload(
                    *(part or {} for part in unpack(pack([upload.slots, upload.masks])))
                )
                slim, upload = replace(slim, report=inspect(plan, upload, known)), None
            outcomes.append((index, slim))
            slots += [outcome.state, *((None, None) if upload is None else (upload.slots, upload.masks))]
        return Trained(tuple(outcomes), pack(slots))

    def add_up(self, adding: Adding, ids: Sequence[int], share: int, before: Reply | None) -> Reply:
        """The sums over what some clients sent, added to those that another actor answered with before; of leaves, of
        a share of them."""
        if before is not None and before.error is not None:
            return before
        known = {} if before is None else unpack_sums(before.result, self.prepared.plan.device)
        result, error = guard(lambda: pack_sums(self._add_up(adding, ids, share, known)), self.node.name)
        return Reply(result, error, (*(before.warnings if before else ()), *self.log.take()))

    def _add_up(self, adding: Adding, ids: Sequence[int], share: int, before: SumsBySlot) -> SumsBySlot:
        plan = self.prepared.plan
        ctx, slots = plan.server(adding.round), tree.to_device(unpack(adding.server)[0] or {}, plan.device)
        for index in ids:
            if index not in self.summands:
                self.summands[index] = plan.method.summand(ctx, slots, self.uploads[index])
        return UploadSums(ctx, {index: self.summands[index] for index in ids}, before, adding.wanted(share))

    def _suit(self, slots: Slots) -> Slots:
        return suit_worker(slots, self.prepared.plan.device, self.prepared.channels_last)


class Warnings(logging.Handler):
    """Keeps what is logged, to be said by the driver."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        log = logging.getLogger("idiolect")
        log.addHandler(self)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text."""
        self.texts.append(f"{record.getMessage()} (on node {platform.node()})")

    def take(self) -> tuple[str, ...]:
        """What was logged since the last time."""
        texts, self.texts = tuple(self.texts), []
        return texts
