"""What goes between the driver and the actors. Slots travel as flat buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...contract import Download
from ...core.sums import Sums
from ...core.tree import Slots
from ..client_round import Outcome
from ..flat import Packed, pack, unpack
from ..loop import States
from ..worker import make_portable

T = TypeVar("T")
SumsBySlot = Mapping[str, Sums]


class Node(NamedTuple):
    """Where an actor lives, and what its numbers depend on."""

    name: str
    version: str
    source: str
    torch: str
    capability: str


class Job(NamedTuple):
    """A group of clients' work: their states and, behind them, what each gets alone. With `keep` the actor keeps what
    they send."""

    kind: str
    serial: int
    round: int
    ids: tuple[int, ...]
    slots: Packed
    keep: bool = False
    unseen: bool = False


class Reply(NamedTuple):
    """What an actor answers: a result, or an error of the clients' own code; and what was logged meanwhile."""

    result: Any = None
    error: Exception | None = None
    warnings: tuple[str, ...] = ()


class Trained(NamedTuple):
    """What a group of clients made: per client its outcome without slots, and its state, upload and masks in a row."""

    outcomes: tuple[tuple[int, Outcome], ...]
    slots: Packed


class Adding(NamedTuple):
    """What is added up on the actors: the uploads of a round, for a server with these slots. Names of leaves have
    shares, which are added up side by side; one without a share is of the first."""

    round: int
    server: Packed
    shares: Mapping[str, int]

    def wanted(self, share: int) -> Callable[[str], bool]:
        """Whether a leaf is of a share."""
        return lambda name: self.shares.get(name, 0) == share


def make_job(kind: str, serial: int, round: int, states: States, download: Download, **more: bool) -> Job:
    """The work of some clients."""
    each = [download.each.get(index) for index in states]
    return Job(kind, serial, round, tuple(states), pack([*states.values(), *each]), **more)


def open_job(job: Job, common: Slots, suit: Callable[[Slots], Slots]) -> tuple[dict[int, Slots | None], Download]:
    """The states and the download of a job's clients."""
    slots = [None if part is None else suit(part) for part in unpack(job.slots)]
    states = dict(zip(job.ids, slots[: len(job.ids)], strict=True))
    return states, Download(common, {i: part or {} for i, part in zip(job.ids, slots[len(job.ids) :], strict=True)})


def pack_sums(sums: SumsBySlot) -> tuple[dict[str, Sums], Packed]:
    """Sums without their numbers, and their numbers in one buffer."""
    empty = {key: value.replace_leaves({}, {}) for key, value in sums.items()}
    return empty, pack([{"total": {**value.total}, "weight": {**value.weight}} for value in sums.values()])


def unpack_sums(packed: tuple[dict[str, Sums], Packed], device: str) -> dict[str, Sums]:
    """The inverse of `pack_sums`."""
    empty, numbers = packed
    parts = [{n: {k: v.to(device) for k, v in leaves.items()} for n, leaves in p.items()} for p in unpack(numbers) if p]
    return {
        key: value.replace_leaves(part["total"], part["weight"])
        for (key, value), part in zip(empty.items(), parts, strict=True)
    }


def guard(work: Callable[[], T], node: str) -> tuple[T | None, Exception | None]:
    """What some work gives, or the error that it raises, in a form that can be sent, with the node's name."""
    try:
        return work(), None
    except Exception as error:
        error.add_note(f"on node {node}")
        return None, make_portable(error)


def name_clients(names: Sequence[str], most: int = 8) -> str:
    """Some names in a sentence."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
