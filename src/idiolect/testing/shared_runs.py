"""Runs on the tiny federation that several checks compare with, each done once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract import Method
from ..data import Client
from ..engines import Engine, Loop, Plan
from ..runs.facts import RunFacts
from ..runs.round_loop import RoundLoop
from ..runs.store import Store
from .disturbances import Disturbed
from .tiny import Played, collect, play, require_equal, tiny_plan, tiny_task

USUAL: dict[str, Any] = {"participation": 0.6, "unseen": 1, "epochs": 1}
"""The plan of most checks: in three rounds every client takes part at least once, none always, and one never does."""
BRIEF: dict[str, Any] = {"rounds": 2, "epochs": 1}
"""The plan of checks to which it only matters that clients go on from a round before."""

tasks = cache(tiny_task)
"""The networks that all checks share, so that what engines find out about one is found out once."""


def make_plan(method: Method, **changes: Any) -> Plan:
    """A plan of a check; of one client's batches the second is smaller, of another's it is a single sample, and three
    clients have less than one."""
    return tiny_plan(method, task=tasks, **{"batch_size": 8, **changes})


@lru_cache(maxsize=128)
def play_once(method: Method, **changes: Any) -> Played:
    """A run on the loop engine, which all checks that compare with it share."""
    return play(make_plan(method, **changes))


def play_scored_once(plan: Plan, engine: Callable[[Plan], Engine] = Loop) -> Played:
    """A run whose models are scored after the last round only."""
    return play(plan, engine, eval_every=plan.rounds)


def plan_of_absent_clients(method: Method) -> Plan:
    """Enough clients that a whole stack of them never takes part."""
    return make_plan(method, clients=10, unseen=2, participation=0.2, after_local=True, eval_global=True, **BRIEF)


@lru_cache(maxsize=2)
def play_absent_once(method: Method) -> Played:
    """A run on the loop engine in which most clients are absent."""
    return play(plan_of_absent_clients(method))


class TwoRounds(NamedTuple):
    """A run on the loop: where it was after the first round, with the facts of then, and after the second."""

    plan: Plan
    first: Played
    facts: RunFacts
    second: Played

    def begun(self) -> Store:
        """A store of a run whose first round was done by the loop."""
        store = Store(None)
        clients = {index: slots for index, slots in self.first.clients.items() if slots is not None}
        store.commit(0, self.first.server, clients, [], self.facts)
        return store


@lru_cache(maxsize=2)
def two_rounds_once(method: Method) -> TwoRounds:
    """Two rounds on the loop engine, which other engines are compared with."""
    plan, store = make_plan(method, rounds=2), Store(None)
    first = play_until(1, plan, Loop(plan), store)
    return TwoRounds(plan, first, store.facts, play_until(2, plan, Loop(plan), store))


@lru_cache(maxsize=2)
def ends_as_undisturbed(method: Method) -> bool:
    """Whether a run ends as usual where everything is disturbed at once that must not matter: clients are served in
    reverse order, all slots go through bytes, and held-out labels are others. Where it does, so it does with each of
    these alone, and in a mere second run; where it does not, each alone shows what matters."""
    disturbed = change_held_out_labels(make_plan(method, **USUAL))
    try:
        require_equal(play_once(method, **USUAL), play_scored_once(disturbed, Disturbed), "disturbed")
    except Exception:  # which of the disturbances it comes from is not known here
        return False
    return True


def change_held_out_labels(plan: Plan) -> Plan:
    """A plan with other labels of the validation and the test data."""
    clients = tuple(replace(client, y=_shuffle(client)) for client in plan.data.clients)
    return replace(plan, data=replace(plan.data, clients=clients))


def _shuffle(client: Client) -> Tensor:
    y = client.y.clone()
    held_out = torch.cat([client.val, client.test])
    y[held_out] = (y[held_out] + 1) % 3
    return y


def play_until(rounds: int, plan: Plan, engine: Engine, store: Store) -> Played:
    """Go on with a run until so many rounds are done; only what the plan's last round ends with is scored."""
    RoundLoop(plan, engine, store, eval_every=plan.rounds).run(stop=lambda: (store.facts.next_round or 0) >= rounds)
    return collect(plan, store)


def losses_of(played: Played) -> dict[str, Tensor]:
    """The losses of all clients, in order, of each round, cohort, point and split; -1 where there is none."""
    losses: dict[str, dict[int, float]] = {}
    for round, client, cohort, point, split, metric, value, _ in played.rows:
        if metric == "loss":
            losses.setdefault(f"{split} loss of round {round + 1}, {cohort}, {point}", {})[client] = value
    return {
        name: torch.tensor([of_client.get(index, math.nan) for index in range(max(of_client) + 1)]).nan_to_num(-1.0)
        for name, of_client in losses.items()
    }
