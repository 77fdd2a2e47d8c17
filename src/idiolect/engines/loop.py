"""The reference engine: one client after another in plain Python. All others must equal it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from ..contract import Download, Slots
from ..core.sums import Sums
from .client_evaluation import Score, evaluate, evaluate_global
from .client_round import Outcome, train
from .plan import Plan

States = Mapping[int, Slots | None]
"""Clients' slots by client; None for one that has none yet."""
Fetch = Callable[[Sequence[int]], States]
"""Fetches the slots of some clients."""
Outcomes = Iterator[tuple[int, Outcome]]
Scores = Iterator[tuple[int, list[Score]]]


class Engine(Protocol):
    """How clients' work is carried out. Results come in any order; the runner sorts them by client."""

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """Run the part of each client in `states` of one round."""
        ...

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Evaluate clients; `states` fetches the slots of some of them."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


@runtime_checkable
class AddsUp(Protocol):
    """An engine that keeps uploads where they were made, and gives a report of each; it adds them up itself."""

    def add_up(self, server: Slots, ids: Sequence[int]) -> Mapping[str, Sums]:
        """Sums over the uploads that some clients made in the round that was trained last."""
        ...


@runtime_checkable
class KnowsPresent(Protocol):
    """An engine that knows which clients can take part in a round, where this changes while a run goes on."""

    def find_present(self) -> Collection[int] | None:
        """The clients that are there now; None where rounds are drawn from all."""
        ...


class Loop:
    """One client after another, in the order of their ids."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """Run the clients' part of one round."""
        for index in sorted(states):
            yield index, train(self.plan, index, round, states[index], download.of(index))

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Evaluate clients one by one."""
        for index in sorted(ids):
            state = states([index])[index]
            common = evaluate_global(self.plan, [index], round, download.shared)
            yield index, evaluate(self.plan, index, round, state, download.of(index), unseen) + common[index]

    def close(self) -> None:
        """Nothing is held."""
