"""Who is there: which node of the network is which client. A client's number belongs to the first node that claims it;
later claims need the same node (which Flower's authentication vouches for), or the same key when that node is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..core.errors import IdiolectError, InputError
from ..runs.store import Store
from .client import NONE
from .messages import Parcel, one_line
from .project import agreed
from .settings import Deployment

log = logging.getLogger("idiolect")
AGAIN = 60.0
"""Seconds after which a node that was refused is asked again who it is."""
MOST_SAMPLES = 10**8


class Post(Protocol):
    """How parcels travel. A node is a number; a ticket names a parcel that was sent."""

    poll: float
    """Seconds between two looks for answers."""

    def nodes(self) -> frozenset[int]:
        """The nodes that are connected."""
        ...

    def send(self, parcels: Mapping[int, Parcel]) -> dict[int, str]:
        """Send parcels to nodes; their tickets."""
        ...

    def collect(self, tickets: Collection[str]) -> dict[str, Parcel | str]:
        """The answers that have come, or why there will be none."""
        ...


@dataclass(frozen=True)
class Member:
    """A client as the server knows it."""

    node: int
    key: str
    name: str
    samples: int
    data: str
    weights: str


class Roster:
    """The clients that have joined.

    Args:
        post: how to reach nodes.
        seats: how many clients the federation has.
        store: where it is remembered which key belongs to which client.
    """

    def __init__(self, post: Post, seats: int, deployment: Deployment, store: Store) -> None:
        self.post, self.seats, self.deployment, self.store = post, seats, deployment, store
        self.members: dict[int, Member] = {}
        self.weights: str | None = None
        self._asked: dict[str, int] = {}
        self._refused: dict[int, float] = {}

    def refresh(self) -> dict[int, int]:
        """Ask new nodes who they are, hear those that answer; the connected clients and their nodes."""
        nodes = self.post.nodes()
        now = time.monotonic()
        settled = {each.node for each in self.members.values()} | set(self._asked.values())
        settled |= {node for node, since in self._refused.items() if now - since < AGAIN}
        sent = self.post.send({node: Parcel({"kind": "hello"}) for node in sorted(nodes - settled)})
        self._asked |= {ticket: node for node, ticket in sent.items()}
        for ticket, told in self.post.collect(self._asked).items():
            self._hear(self._asked.pop(ticket), told)
        self._asked = {ticket: node for ticket, node in self._asked.items() if node in nodes}
        return {index: each.node for index, each in self.members.items() if each.node in nodes}

    def gather(self, wanted: Collection[int], needed: int, patience: float) -> dict[int, int]:
        """Wait until all wanted clients are connected; after `patience` seconds some of them will do."""
        end = time.monotonic() + patience
        while True:
            here = {index: node for index, node in self.refresh().items() if index in wanted}
            if len(here) == len(wanted) or (time.monotonic() >= end and len(here) >= needed):
                return here
            if time.monotonic() >= end + self.deployment.timeout:
                raise IdiolectError(
                    f"only {len(here)} of {len(wanted)} clients are connected and {needed} are needed; "
                    f"the state is saved, so start the SuperNodes and run the app again"
                )
            time.sleep(self.post.poll)

    def expect(self, weights: str) -> None:
        """From now on every client must start from these initial weights."""
        self.weights = weights
        for index, each in list(self.members.items()):
            if each.weights != weights:
                del self.members[index]
                self._refuse(each.node, f"client {index} starts from other initial weights than the server")

    def data(self) -> str:
        """What most clients say of their data."""
        return agreed(each.data for each in self.members.values())

    def _hear(self, node: int, told: Parcel | str) -> None:
        try:
            index, member = self._admitted(node, told)
        except InputError as error:
            self._refuse(node, str(error))
            return
        back = "back" if str(index) in self.store.fact("keys", {}) else "new"
        self.members[index] = member
        self._refused.pop(node, None)
        keys = self.store.fact("keys", {}) | {str(index): [node, member.key]}
        self.store.commit(NONE, {}, {}, [], {"keys": keys})
        log.info("client %d (%s) is %s: %d training samples", index, one_line(member.name), back, member.samples)

    def _admitted(self, node: int, told: Parcel | str) -> tuple[int, Member]:
        if isinstance(told, str):
            raise InputError(told)
        if "problem" in told.head:
            raise InputError(told.get("problem", str))
        index = told.get("client", int)
        if index not in range(self.seats):
            raise InputError(f"it says it is client {index}, but the clients are 0 to {self.seats - 1}")
        texts = {name: told.get(name, str) for name in ("key", "name", "data", "weights")}
        member = Member(node, samples=told.get("samples", int), **texts)
        owner, key = self.store.fact("keys", {}).get(str(index), (node, member.key))
        if node != owner and member.key != key:
            raise InputError(f"it says it is client {index}, which is another node with another key")
        if node != owner and owner in self.post.nodes():
            raise InputError(f"it says it is client {index}, which is another node that is still connected")
        if self.weights is not None and member.weights != self.weights:
            raise InputError(f"client {index} starts from other initial weights than the server")
        if not 1 <= member.samples <= MOST_SAMPLES:
            raise InputError(f"client {index} says it has {member.samples} training samples")
        return index, member

    def _refuse(self, node: int, reason: str) -> None:
        self._refused[node] = time.monotonic()
        log.warning("node %d was not admitted: %s", node, one_line(reason))
