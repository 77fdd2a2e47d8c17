"""What every method must satisfy on every engine: all end as the loop does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..contract import Method
from ..core import tree
from ..engines import Engine, Loop, Plan, Workers
from ..flower.loopback import LoopbackEngine
from ..runs.store import Store
from .differences import require, require_equal_leaves
from .disturbances import Backwards, InTurn, ThroughBytes, WorkersHere
from .placement import elsewhere
from .shared_runs import (
    USUAL,
    ends_as_undisturbed,
    losses_of,
    make_plan,
    plan_of_absent_clients,
    play_absent_once,
    play_once,
    play_scored_once,
    play_until,
    two_rounds_once,
)
from .tiny import Played, play, require_equal, tiny_plan

RELATIVE = 1e-4
MakeWorkers = Callable[[Plan], Workers]


def check_client_order(method: Method) -> None:
    """The order in which clients are served does not matter."""
    if not ends_as_undisturbed(method):
        backwards = play_scored_once(make_plan(method, **USUAL), Backwards)
        require_equal(play_once(method, **USUAL), backwards, "clients in reverse order")


def check_through_bytes(method: Method) -> None:
    """All slots survive encoding, and counted bytes are encoded bytes."""
    if not ends_as_undisturbed(method):
        encoded = play_scored_once(make_plan(method, **USUAL), ThroughBytes)
        require_equal(play_once(method, **USUAL), encoded, "through bytes")


def check_devices(method: Method) -> None:
    """Clients' rounds, evaluation and the server's step keep to the run's device, in stacks and one by one."""
    stacks = list[Workers]()

    def make(plan: Plan) -> Engine:
        stacks.append(WorkersHere(plan, 1, chunk=3))
        return InTurn(stacks[0], Loop(plan))

    play_elsewhere(method, make, clients=3, batch_size=8)
    problem = "" if method.refuses.stacking else stacks[0].unstacked
    require(not problem, f"clients that are stacked do not keep to it: {problem}")


def play_elsewhere(method: Method, make: Callable[[Plan], Engine] = Loop, **changes: Any) -> Played:
    """Two rounds on a device that is not there, with networks of its own, which move."""
    plan = tiny_plan(method, rounds=2, epochs=1, unseen=1, **{"batch_size": 16, **changes})
    with elsewhere() as device:
        for task in plan.tasks:
            task.net.to(device)
        placed = replace(plan, training=replace(plan.training, device=device))
        there = play(placed, make, Store(None, device=device))
        clients = {index: slots and tree.to_device(slots, "cpu") for index, slots in there.clients.items()}
        return replace(there, server=tree.to_device(there.server, "cpu"), clients=clients)


def check_workers(method: Method) -> None:
    """Clients in worker processes end as in the loop: in the first round, in the second from the same state, and, where
    most are absent, in all scores."""
    _require_as_in_the_loop(method, "workers", lambda plan: Workers(plan, 2), lambda plan: WorkersHere(plan, 2))


def check_stacking(method: Method) -> None:
    """Clients that are stacked end as in the loop, in the same cases; or that they cannot be stacked is declared."""
    stacked = lambda plan: WorkersHere(plan, 1, chunk=3)  # noqa: E731
    unstacked = _require_as_in_the_loop(method, "vector", stacked, stacked)
    problem = "" if method.refuses.stacking else unstacked
    require(not problem, f"its clients cannot be stacked, but refuses.stacking does not say so: {problem}")


def _require_as_in_the_loop(method: Method, name: str, make: MakeWorkers, where_absent: MakeWorkers) -> str:
    """Require an engine to agree with the loop; why it did not stack clients, if that was asked of it."""
    looped = two_rounds_once(method)
    with closing(make(looped.plan)) as engine:
        again = play_until(2, looped.plan, engine, looped.begun())
        alone = play_until(1, looped.plan, engine, Store(None))
    require_equal(looped.first, alone, f"engine {name}", RELATIVE)
    require_equal(looped.second, again, f"engine {name}, round 2", RELATIVE)
    absent = play(plan_of_absent_clients(method), where_absent)
    require_equal_leaves(losses_of(play_absent_once(method)), losses_of(absent), f"engine {name}", RELATIVE)
    return engine.unstacked


def check_network(method: Method) -> None:
    """Over the client's and the server's side of a deployment all is as in the loop: states, scores and bytes."""
    plan = make_plan(method, **USUAL)
    remote = LoopbackEngine(plan)
    local, deployed = play_once(method, **USUAL), play(remote.plan, lambda _: remote)
    require_equal(local, replace(deployed, clients=remote.states(plan.data.seen)), "through a deployment")
    require(local.rows == deployed.rows, "the metrics through a deployment differ")
    require(local.cost == deployed.cost, f"the run cost {local.cost} and, deployed, {deployed.cost}")
