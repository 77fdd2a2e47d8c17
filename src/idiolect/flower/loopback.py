"""The whole way from server to clients and back in one process: the engine and the desks of a deployment, without a
network between them. For tests, and for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ..core.tree import Slots
from ..engines import Plan
from ..runs.setup import weights_hash
from ..runs.store import Store
from .client import Desk, guarded
from .membership import Post, Roster
from .messages import Parcel
from .project import alone, blank, describe_data
from .settings import Deployment
from .transport import FlowerEngine

STRICT = Deployment(quorum=1.0, timeout=10.0, attempts=1)


class Loopback:
    """A post that hands parcels to desks in this process; client i is node 100 + i."""

    poll = 0.0

    def __init__(self, desks: Mapping[int, Desk]) -> None:
        self.desks = {100 + index: desk for index, desk in desks.items()}
        self._answers: dict[str, Parcel | str] = {}

    def nodes(self) -> frozenset[int]:
        """All desks."""
        return frozenset(self.desks)

    def send(self, parcels: Mapping[int, Parcel]) -> dict[int, str]:
        """Answered at once."""
        tickets = {node: f"{node}-{len(self._answers)}" for node in parcels}
        self._answers |= {
            tickets[node]: guarded(parcel, node - 100, self.desks[node].answer) for node, parcel in parcels.items()
        }
        return tickets

    def collect(self, tickets: Collection[str]) -> dict[str, Parcel | str]:
        """The answers to some parcels."""
        return {ticket: self._answers[ticket] for ticket in tickets if ticket in self._answers}


class LoopbackEngine(FlowerEngine):
    """The engine of a deployment with all its clients in this process, each of which has only its own data.

    Args:
        plan: a plan with all data.
        deployment: how long to wait and what to accept; by default all clients must answer.
        post: how parcels travel, made from the desks.
        folder: where the clients keep their states; None keeps them in memory.
        store: the server's store, the same that the run uses.
    """

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment = STRICT,
        post: Callable[[Mapping[int, Desk]], Post] = Loopback,
        folder: Path | None = None,
        store: Store | None = None,
    ) -> None:
        self.desks = {
            i: Desk(replace(plan, data=alone(plan.data, i)), i, folder and folder / str(i))
            for i in range(len(plan.data))
        }
        counts = {i: len(client) for i, client in enumerate(plan.data.clients)}
        kind, public = describe_data(plan.data, 0), plan.data.public
        server = replace(plan, data=blank(kind, len(plan.data), plan.data.unseen, counts, public=public))
        store = store or Store(None)
        roster = Roster(post(self.desks), len(plan.data), deployment, store)
        roster.expect(weights_hash(plan))
        super().__init__(server, roster, store, deployment)

    def states(self, ids: Collection[int]) -> dict[int, Slots | None]:
        """The states that clients hold."""
        return {i: self.desks[i].states.clients([i])[i] for i in ids}
