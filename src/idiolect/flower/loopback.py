"""Server and clients of a deployment in one process, without a network between them. For tests, and for the
conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ..core.tree import Slots
from ..data.description import describe
from ..engines import Plan
from ..runs.setup import weights_hash
from ..runs.store import Store
from .client import ClientService, report_problems
from .engine import FlowerEngine
from .membership import Membership
from .messages import Message
from .project import hide_other_clients, make_placeholders
from .settings import Deployment
from .transport import Transport

STRICT = Deployment(quorum=1.0, timeout=10.0, attempts=1)
FIRST_NODE = 100


class LoopbackTransport:
    """Hands requests to client services in this process. Client i is node 100 + i.

    Args:
        services: the clients.
    """

    poll = 0.0

    def __init__(self, services: Mapping[int, ClientService]) -> None:
        self.services = {FIRST_NODE + index: service for index, service in services.items()}
        self._replies: dict[str, Message | str] = {}

    def nodes(self) -> frozenset[int]:
        """All clients."""
        return frozenset(self.services)

    def send(self, requests: Mapping[int, Message]) -> dict[int, str]:
        """Handle requests at once."""
        message_ids = {node: f"{node}-{len(self._replies)}" for node in requests}
        self._replies |= {
            message_ids[node]: report_problems(self.services[node].handle, request, node - FIRST_NODE)
            for node, request in requests.items()
        }
        return message_ids

    def collect(self, message_ids: Collection[str]) -> dict[str, Message | str]:
        """The replies to some requests."""
        return {message_id: self._replies[message_id] for message_id in message_ids if message_id in self._replies}


class LoopbackEngine(FlowerEngine):
    """The engine of a deployment with all its clients in this process, each of which has only its own data.

    Args:
        plan: a plan with all data.
        deployment: how long to wait and what to accept; by default all clients must reply.
        make_transport: makes a transport of the client services.
        folder: where the clients keep their states; None keeps them in memory.
        store: the server's store, the same that the run uses.
    """

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment = STRICT,
        make_transport: Callable[[Mapping[int, ClientService]], Transport] = LoopbackTransport,
        folder: Path | None = None,
        store: Store | None = None,
    ) -> None:
        data = plan.data
        self.services = {
            i: ClientService(replace(plan, data=hide_other_clients(data, i)), i, folder and folder / str(i))
            for i in range(len(data))
        }
        samples = {i: len(client) for i, client in enumerate(data.clients)}
        placeholders = make_placeholders(describe(data, 0), len(data), data.unseen, samples, public=data.public)
        store = store or Store(None)
        membership = Membership(make_transport(self.services), len(data), deployment, store)
        membership.require_weights(weights_hash(plan))
        super().__init__(replace(plan, data=placeholders), membership, store, deployment)

    def states(self, ids: Collection[int]) -> dict[int, Slots | None]:
        """The states that clients have stored."""
        return {i: self.services[i].states.clients([i])[i] for i in ids}
