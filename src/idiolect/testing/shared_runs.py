"""Runs on the tiny federation that several checks compare with, each done once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from ..contract import Method
from ..engines import Engine, Loop, Plan
from ..runs.round_loop import RoundLoop
from ..runs.store import Store
from .tiny import Played, collect, play, tiny_plan, tiny_task

USUAL: dict[str, Any] = {"participation": 0.6, "unseen": 1}
"""The plan of most checks: in three rounds every client takes part at least once, none always, and one never does."""

tasks = cache(tiny_task)
"""The networks that all checks share, so that what engines find out about one is found out once."""


def make_plan(method: Method, **changes: Any) -> Plan:
    """A plan of a check."""
    return tiny_plan(method, task=tasks, **changes)


@lru_cache(maxsize=128)
def play_once(method: Method, **changes: Any) -> Played:
    """A run on the loop engine, which all checks that compare with it share."""
    return play(make_plan(method, **changes))


def play_scored_once(plan: Plan, engine: Callable[[Plan], Engine] = Loop) -> Played:
    """A run whose models are scored after the last round only."""
    return play(plan, engine, eval_every=plan.rounds)


def plan_of_absent_clients(method: Method) -> Plan:
    """Enough clients that a whole stack of them never takes part."""
    return make_plan(method, clients=10, unseen=2, participation=0.2, rounds=2, after_local=True, eval_global=True)


@lru_cache(maxsize=2)
def play_absent_once(method: Method) -> Played:
    """A run on the loop engine in which most clients are absent."""
    return play(plan_of_absent_clients(method))


@lru_cache(maxsize=2)
def two_rounds_once(method: Method) -> tuple[Plan, Played, Played]:
    """A run on the loop: where it was after the first round and after the second."""
    plan, store = make_plan(method, rounds=2), Store(None)
    return plan, play_until(1, plan, Loop(plan), store), play_until(2, plan, Loop(plan), store)


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
