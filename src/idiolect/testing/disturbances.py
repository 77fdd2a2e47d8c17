"""Engines that only test: what they do otherwise must not matter, or must be noticed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..contract import Download, Upload
from ..core import codec, tree
from ..engines import Engine, Loop, Workers
from ..engines.loop import Fetch, Outcomes, Scores, States
from ..engines.stacking import ignore_slow_operations
from ..engines.worker import Answer, Job, Worker, prepare
from .differences import require


class Backwards(Loop):
    """The loop engine, last client first."""

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """The clients' parts, in reverse order."""
        for index in sorted(states, reverse=True):
            yield from super().train(round, {index: states[index]}, download)


class ThroughBytes(Loop):
    """The loop engine with every message and state encoded and decoded on its way."""

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """The clients' parts, all slots through bytes."""
        for index, before in sorted(states.items()):
            state = None if before is None else codec.decode(codec.encode(before))[0]
            message = Download(codec.decode(codec.encode(download.of(index)))[0])
            for _, outcome in super().train(round, {index: state}, message):
                upload = outcome.upload
                if upload is not None:
                    data = codec.encode(upload.slots, upload.masks)
                    counted = codec.size(upload.slots, upload.masks)
                    require(codec.payload(data) == counted, f"{counted} bytes counted, {codec.payload(data)} encoded")
                    upload = Upload(*codec.decode(data))
                yield index, replace(outcome, upload=upload)


class Disturbed(Backwards, ThroughBytes):
    """The loop engine, last client first, with all slots through bytes."""


class WorkersHere(Workers):
    """Workers that do all that worker processes do, in turn and in this process, so that none has to be forked."""

    def _start_workers(self) -> None:
        ignore_slow_operations()
        prepared = prepare(self.plan, self.chunk)
        memory = (self._shared, self._inboxes)
        self._waiting = deque[Job]()
        self._workers = deque(
            Worker(number, prepared, self.chunk, *memory, box) for number, box in enumerate(self._outboxes)
        )

    def _submit(self, job: Job) -> None:
        self._waiting.append(job)

    def _receive(self) -> Answer:
        self._workers.rotate()
        return self._workers[0].work(self._waiting.popleft())

    def _stop_workers(self) -> None:
        self._workers.clear()


class InTurn:
    """Several engines, each of which does a round."""

    def __init__(self, *engines: Engine) -> None:
        self.engines = engines

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """The clients' parts, by the engine whose turn it is."""
        return self.engines[round % len(self.engines)].train(round, states, download)

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Clients' scores, by the same engine."""
        return self.engines[round % len(self.engines)].evaluate(round, ids, states, download, unseen)

    def close(self) -> None:
        """Close them all."""
        for engine in self.engines:
            engine.close()


class Poisoned(Loop):
    """The loop engine with one client whose upload is not finite."""

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """The clients' parts; client 1's upload is spoilt."""
        for index, outcome in super().train(round, states, download):
            upload = outcome.upload
            if index == 1 and upload is not None:
                spoilt = {slot: tree.map(_spoil, leaves) for slot, leaves in upload.slots.items()}
                upload = Upload(spoilt, upload.masks)
            yield index, replace(outcome, upload=upload)


def _spoil(leaf: Tensor) -> Tensor:
    return leaf * float("nan") if leaf.is_floating_point() else leaf
