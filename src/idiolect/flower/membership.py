"""Which SuperNode is which client. A client's number belongs to the first node that claims it. A later claim needs the
same node (which Flower's authentication proves), or the same key when that node is gone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import median
from typing import Any

from ..core.errors import IdiolectError, InputError
from ..data.description import Description, read_description
from ..runs.store import Store
from .folders import write_facts
from .messages import Message
from .settings import Deployment
from .transport import Transport
from .validation import one_line, refuse_errors, require_success

log = logging.getLogger("idiolect")
RETRY_SECONDS = 60.0
"""After this time a node that was not admitted is asked again."""
MAX_SAMPLES = 10**8
MAX_TEXT_LENGTH = 10_000
MAX_EXCESS = 100
"""So many times as many classes, words or numbers as is usual among the clients one may have."""
NUMBERS = {"classes": "classes", "words": "different tokens", "size": "numbers per sample"}
TEXTS = ("key", "name", "data", "weights")


@dataclass(frozen=True)
class Member:
    """A client that has joined.

    Attributes:
        node: the id of its SuperNode.
        key: the secret that it keeps in its folder.
        name: what it calls itself.
        samples: how many training samples it has.
        val: how many validation samples.
        test: how many test samples.
        data: the description of its data (`idiolect.data.description`).
        weights: the hash of its initial weights.
    """

    node: int
    key: str
    name: str
    samples: int
    val: int
    test: int
    data: str
    weights: str

    @property
    def sizes(self) -> dict[str, int]:
        """How many samples its splits have."""
        return {"train": self.samples, "val": self.val, "test": self.test}


class Membership:
    """The clients that have joined the federation.

    Args:
        transport: how to reach the SuperNodes.
        n_clients: how many clients the federation has.
        deployment: how long to wait for clients.
        store: the server's store, which remembers the node, the key and the samples of every client.
    """

    def __init__(self, transport: Transport, n_clients: int, deployment: Deployment, store: Store) -> None:
        self.transport, self.n_clients, self.deployment, self.store = transport, n_clients, deployment, store
        self.members: dict[int, Member] = {}
        self.weights: str | None = None
        self.agreed: str = store.fact("data", "")
        self._pending: dict[str, int] = {}
        self._refused: dict[int, float] = {}
        self._unfit: set[int] = set()

    def refresh(self) -> dict[int, int]:
        """Ask new nodes who they are, and admit those that have replied; the nodes of the connected clients."""
        nodes = self.transport.nodes()
        now = time.monotonic()
        known = {member.node for member in self.members.values()} | set(self._pending.values())
        known |= {node for node, since in self._refused.items() if now - since < RETRY_SECONDS}
        hello = Message({"kind": "hello", **({"data": self.agreed} if self.agreed else {})})
        sent = self.transport.send(dict.fromkeys(sorted(nodes - known), hello))
        self._pending |= {message_id: node for node, message_id in sent.items()}
        for message_id, reply in self.transport.collect(self._pending).items():
            self._admit(self._pending.pop(message_id), reply)
        self._pending = {message_id: node for message_id, node in self._pending.items() if node in nodes}
        return {index: member.node for index, member in self.members.items() if member.node in nodes}

    def wait_for(self, clients: Collection[int], needed: int, seconds: float) -> dict[int, int]:
        """Wait until clients are connected; their nodes.

        Args:
            clients: the clients to wait for.
            needed: how many of them are enough after `seconds`.
            seconds: how long to wait for all of them; after that, `timeout` seconds more for those that are needed.
        """
        deadline = time.monotonic() + seconds
        while True:
            connected = {index: node for index, node in self.refresh().items() if index in clients}
            if len(connected) == len(clients) or (time.monotonic() >= deadline and len(connected) >= needed):
                return connected
            if time.monotonic() >= deadline + self.deployment.timeout:
                raise IdiolectError(
                    f"only {len(connected)} of {len(clients)} clients are connected and {needed} are needed; "
                    f"the state is saved, so start the SuperNodes and run the app again"
                )
            time.sleep(self.transport.poll)

    def require_weights(self, weights: str) -> None:
        """Admit from now on only clients with these initial weights, given as a hash."""
        self.weights = weights
        for index, member in list(self.members.items()):
            try:
                self._check_weights(index, member)
            except InputError as error:
                del self.members[index]
                self._refuse(member.node, error)

    def agree(self) -> str:
        """What the descriptions of the clients' data make, which is the same from then on. Clients whose own is another
        are asked again who they are, now that they can bring their data to one form."""
        if not self.agreed:
            told = {index: read_description(member.data) for index, member in sorted(self.members.items())}
            base = find_typical([*told.values()])
            problems = {index: problem for index, each in told.items() if (problem := find_misfit(base, each))}
            problems |= find_excess(told)
            for index, problem in problems.items():
                self._refuse(self.members.pop(index).node, InputError(f"client {index}: {problem}"))
            self.agreed = str(reduce(Description.join, [told[index] for index in told if index not in problems]))
            write_facts(self.store, {"data": self.agreed})
        for index, member in list(self.members.items()):
            if member.data != self.agreed or not member.weights:
                self._unfit.add(member.node)
                self.forget(index)
        return self.agreed

    def wait_for_agreed(self) -> None:
        """Wait for the clients that were asked again, as long as they are connected."""
        deadline = time.monotonic() + self.deployment.timeout
        while time.monotonic() < deadline:
            nodes = {*self.refresh().values(), *self._refused}
            if not (self._unfit & self.transport.nodes()) - nodes:
                break
            time.sleep(self.transport.poll)
        self._unfit.clear()

    def forget(self, index: int) -> None:
        """Ask a client anew who it is, before anything else is asked of it."""
        self.members.pop(index, None)

    def count_samples(self) -> dict[int, int]:
        """How many training samples every client has that has ever joined."""
        return {int(index): known["sizes"]["train"] for index, known in self.store.fact("members", {}).items()}

    def _admit(self, node: int, reply: Message | str) -> None:
        try:
            with refuse_errors():
                index, member = self._read_claim(node, require_success(reply))
                self._check_claim(index, member)
        except InputError as error:
            self._refuse(node, error)
            return
        members = self.store.fact("members", {})
        joined = "rejoined" if str(index) in members else "joined"
        joined = "has brought its data to the form of all" if node in self._unfit else joined
        self.members[index] = member
        self._refused.pop(node, None)
        known = {"node": node, "key": member.key, "sizes": member.sizes}
        write_facts(self.store, {"members": members | {str(index): known}})
        log.info("client %d (%s) %s: %d training samples", index, one_line(member.name), joined, member.samples)

    def _read_claim(self, node: int, reply: Message) -> tuple[int, Member]:
        """Which client a node claims to be, and what it says about itself."""
        index = reply.get("client", int)
        if index not in range(self.n_clients):
            raise InputError(f"it claims to be client {index}, but the clients are 0 to {self.n_clients - 1}")
        texts = {name: reply.get(name, str) for name in TEXTS}
        if max(len(text) for name, text in texts.items() if name != "data") > MAX_TEXT_LENGTH:
            raise InputError(f"it says too much; a text may have {MAX_TEXT_LENGTH} characters")
        read_description(texts["data"])
        facts: dict[str, Any] = {**texts, **{name: reply.get(name, int) for name in ("samples", "val", "test")}}
        return index, Member(node, **facts)

    def _check_claim(self, index: int, member: Member) -> None:
        sizes = member.sizes
        known = self.store.fact("members", {}).get(str(index), {"node": member.node, "key": member.key, "sizes": sizes})
        if member.node != known["node"] and member.key != known["key"]:
            raise InputError(f"it claims to be client {index}, which belongs to another node with another key")
        if member.node != known["node"] and known["node"] in self.transport.nodes():
            raise InputError(f"it claims to be client {index}, whose node is still connected")
        if self.agreed and member.data != self.agreed:
            raise InputError(f"the data of client {index} are not of the form that the clients agreed on at the start")
        self._check_weights(index, member)
        if not 1 <= member.samples <= MAX_SAMPLES:
            raise InputError(f"client {index} has {member.samples} training samples; 1 to {MAX_SAMPLES} are allowed")
        if not all(0 <= size <= MAX_SAMPLES for size in sizes.values()):
            raise InputError(f"client {index} has an impossible number of validation or test samples: {sizes}")
        if sizes != known["sizes"]:
            raise InputError(
                f"client {index} joined with {known['sizes']} samples and now has {sizes}; sample counts are fixed at "
                f"joining, so give it the same data, or start a federation with another name"
            )

    def _check_weights(self, index: int, member: Member) -> None:
        if self.weights is not None and member.weights != self.weights:
            raise InputError(f"the initial weights of client {index} differ from the server's")

    def _refuse(self, node: int, error: InputError) -> None:
        self._refused[node] = time.monotonic()
        log.warning("SuperNode %d was not admitted: %s", node, one_line(str(error)))


def find_typical(told: Sequence[Description]) -> Description:
    """The description with which most others can be joined."""
    different = {str(each): each for each in told}
    return max(different.values(), key=lambda base: sum(not find_misfit(base, each) for each in told))


def find_misfit(base: Description, other: Description) -> str:
    """Why two clients' data cannot be of one federation; empty if they can."""
    try:
        base.join(other)
    except InputError as error:
        return str(error)
    return ""


def find_excess(told: Mapping[int, Description]) -> dict[int, str]:
    """The clients that ask for far larger networks than the others do, and why."""
    problems = {}
    for name in ("classes", "words", "size"):
        sizes = {index: _measure(each, name) for index, each in told.items()}
        usual = median(sizes.values())
        for index, size in sizes.items():
            if size > MAX_EXCESS * max(usual, 1):
                problems[index] = f"it has {size:,} {NUMBERS[name]}, more than {MAX_EXCESS} times as many as is usual"
    return problems


def _measure(description: Description, name: str) -> int:
    return math.prod(description.x[0]) if name == "size" else getattr(description, name) or 0
