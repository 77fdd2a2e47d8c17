"""A tiny federation with awkward clients, and whole runs on it: one client has a single sample, one a single class, one
fewer samples than a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Method, Training, methods
from ..core.randomness import torch_seed
from ..core.tree import Slots
from ..data import Client, Federation
from ..engines import Engine, Loop, Plan
from ..engines.slots import first_client, gather
from ..runs.round_loop import RoundLoop
from ..runs.store import Store
from ..task.task import Task
from .differences import require_equal_leaves
from .disturbances import WorkersHere

ROUNDS = 3


def tiny_model(norm: bool = False, width: int = 6) -> nn.Module:
    """A small classifier of three layers, with or without batch normalisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(0, f"tiny {width}"))
        middle = [nn.BatchNorm1d(width)] if norm else []
        return nn.Sequential(nn.Linear(4, width), *middle, nn.ReLU(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 3))


def tiny_federation(clients: int = 5, unseen: int = 0) -> Federation:
    """Clients of 14, 9, 6 (one class), 3 (less than a batch) and 1 training samples, each with its own shift."""
    draw = torch.Generator().manual_seed(1)
    members = []
    for position in range(clients + unseen):
        size = (14, 9, 6, 3, 1)[position % 5] if position < clients else 8
        y = torch.full((size + 8,), 1) if position % 5 == 2 else torch.randint(0, 3, (size + 8,), generator=draw)
        x = torch.randn(size + 8, 4, generator=draw) + torch.nn.functional.one_hot(y, 4) + 0.3 * position
        train, val, test = torch.split(torch.arange(size + 8), [size, 4, 4])
        members.append(Client(f"c{position}", x, y, train, val, test))
    public = (torch.randn(12, 4, generator=draw), torch.randint(0, 3, (12,), generator=draw))
    hidden = frozenset(range(clients, clients + unseen))
    return Federation(tuple(members), "tiny", 3, "given", "0" * 12, public, hidden)


def tiny_task(norm: bool = False, width: int = 6) -> Task:
    """The task of a small classifier."""
    x, y = tiny_federation().clients[0].split("train")
    return Task(tiny_model(norm, width), (x[:2], y[:2]), classes=3)


def tiny_plan(
    method: str | Method,
    *,
    norm: bool = False,
    clients: int = 5,
    unseen: int = 0,
    task: Callable[[bool, int], Task] = tiny_task,
    **changes: Any,
) -> Plan:
    """A plan for a tiny federation; `changes` replace fields of the plan or of its training."""
    chosen = methods.build(method)
    data = tiny_federation(clients, unseen)
    several = chosen.needs.networks
    tasks = tuple(task(norm, width) for width in ((6, 3) if several else (6,)))
    chosen.check(tasks[0])
    options = {name: changes.pop(name) for name in list(changes) if name in Training.__dataclass_fields__}
    training = Training(**{"lr": 0.1, "epochs": 2, "batch_size": 4, **options})
    networks = tuple(i % 2 for i in range(len(data.clients))) if several else ()
    plan_fields = {"rounds": ROUNDS, "networks": networks, "training": training, **changes}
    return Plan(method=chosen, tasks=tasks, data=data, **plan_fields)


@dataclass(frozen=True)
class Played:
    """Where a run ended: the server's and the clients' slots, the metrics without times, and what it cost."""

    server: Slots
    clients: Mapping[int, Slots | None]
    rows: list[Any]
    cost: Mapping[str, Any] = field(default_factory=dict)

    def leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Everything, named."""
        for slot, leaves in self.server.items():
            yield from ((f"server {slot} {name}", leaf) for name, leaf in leaves.items())
        for index, slots in self.clients.items():
            for slot, leaves in (slots or {}).items():
                yield from ((f"client {index} {slot} {name}", leaf) for name, leaf in leaves.items())


def play(
    plan: Plan, engine: Callable[[Plan], Engine] = Loop, store: Store | None = None, eval_every: int = 1
) -> Played:
    """Run a plan to its end and collect the state."""
    store = store or Store(None)
    runner = engine(plan)
    try:
        RoundLoop(plan, runner, store, eval_every).run()
    finally:
        runner.close()
    return collect(plan, store)


def collect(plan: Plan, store: Store) -> Played:
    """Where a run is, by its store."""
    cost = {name: store.fact(name) for name in ("bytes_up", "bytes_down", "bytes_eval", "steps")}
    return Played(store.server(), store.clients(plan.data.seen), store.rows(), cost)


def require_equal(a: Played, b: Played, what: str, relative: float = 0.0) -> None:
    """Require two runs to end in the same state, to the bit or to a relative tolerance."""
    require_equal_leaves(dict(a.leaves()), dict(b.leaves()), what, relative)


def require_stacking_agrees(plan: Plan, relative: float) -> None:
    """Require clients that are stacked, in this process, to end where the loop ends, within a relative tolerance."""
    require_equal(play(plan), play(plan, lambda plan: WorkersHere(plan, 1, chunk=3)), "stacked clients", relative)


def personal_models(plan: Plan, played: Played) -> dict[int, Slots]:
    """What every client predicts with after a run."""
    download = plan.method.download(plan.server(plan.rounds - 1), played.server, plan.data.seen)
    models = {}
    for index, state in played.clients.items():
        ctx = plan.context(index, plan.rounds - 1, newcomer=state is None)
        work = gather(ctx, first_client(ctx) if state is None else state, download.of(index), training=False)
        models[index] = plan.method.personal_model(ctx, work)
    return models


def play_params(plan: Plan) -> dict[int, dict[str, Tensor]]:
    """Do a run: the parameters that every client predicts with after it."""
    return {index: model["params"] for index, model in personal_models(plan, play(plan)).items()}
