"""Small pieces that tests of methods are made of: what a client works with before a step, models of one weight, made-up
uploads, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Batch, ClientContext, Slots, Task, Tree, Upload
from ..core import tree
from ..data import Federation
from ..engines import Plan
from ..engines.client_round import Outcome, train
from ..engines.slots import first_client, first_server, gather
from ..task.network import Net


def scalar_task(weight: float, x: Tensor, y: Tensor, **options: Any) -> Task:
    """A model of one weight, without bias: `weight` times x.

    >>> task = scalar_task(2.0, torch.ones(2, 1), torch.ones(2, 1))
    >>> task.forward(task.net.params, {}, torch.full((1, 1), 3.0)).outputs
    tensor([[6.]])
    """
    return Task(scalar_module(weight), (x, y), **options)


def scalar_module(weight: float) -> nn.Linear:
    """A linear layer of one weight, without bias."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, weight)
    return module


class Product(nn.Module):
    """A model of two weights, a body of one and a head of one: head times body times x.

    >>> Product(body=2.0, head=3.0)(torch.ones(1, 1)).item()
    6.0
    """

    def __init__(self, body: float, head: float) -> None:
        super().__init__()
        self.body, self.head = scalar_module(body), scalar_module(head)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head on those of the body."""
        outputs: Tensor = self.head(self.body(x))
        return outputs


def half_squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half of the squared error of each sample, whose gradient in the outputs is their error."""
    return (outputs - y).pow(2).sum(1) / 2


def scalar_federation(target: float, samples: int = 1, clients: int = 1) -> Federation:
    """Clients whose samples, in training, validation and test, all have the input 1 and the same target."""
    part = (torch.ones(samples, 1), torch.full((samples, 1), target))
    return Federation.from_clients([{"train": part, "val": part, "test": part}] * clients)


def scalar(value: float) -> Tree:
    """The parameters of a model of one weight.

    >>> scalar(2.0)
    {'weight': tensor([[2.]])}
    """
    return {"weight": torch.tensor([[value]])}


def context_of(plan: Plan, phase: int | None = None, index: int = 0, round: int = 0, **changes: Any) -> ClientContext:
    """A client's context, in its `phase`-th phase; `changes` replace fields, and with another `task` the method's extra
    networks are made for it."""
    ctx = plan.context(index, round, newcomer=changes.pop("newcomer", True))
    if "task" in changes:
        nets = {name: Net(module) for name, module in plan.method.modules(changes["task"]).items()}
        changes = {"nets": nets, **changes}
    ctx = replace(ctx, **changes)
    return ctx if phase is None else replace(ctx, phase=plan.method.phases(ctx)[phase])


def with_log(slots: Slots) -> Slots:
    """Working slots with an empty training log, as an engine makes them, in the precision of the parameters."""
    zero = next(iter(slots["params"].values())).new_zeros(())
    return {**slots, "log": {"loss": zero, "samples": zero}}


def download_of(plan: Plan, index: int = 0, round: int = 0, server: Slots | None = None) -> Slots:
    """What a client gets: of the server's slots as given, or else of its first ones."""
    ctx = plan.server(round)
    return plan.method.download(ctx, first_server(ctx) if server is None else server, (index,)).of(index)


def start_training(
    plan: Plan, server: Slots | None = None, state: Slots | None = None, index: int = 0, round: int = 0
) -> tuple[ClientContext, Slots]:
    """A client's context in its first phase, and its working slots after `prepare`; without `state` it is new."""
    ctx = context_of(plan, 0, index, round, newcomer=state is None)
    client = first_client(ctx) if state is None else state
    work = plan.method.prepare(ctx, gather(ctx, client, download_of(plan, index, round, server)))
    return ctx, with_log(work)


def train_client(
    plan: Plan, index: int = 0, round: int = 0, server: Slots | None = None, state: Slots | None = None
) -> Outcome:
    """One client's part of a round."""
    return train(plan, index, round, state, download_of(plan, index, round, server))


def personal_model(
    plan: Plan, server: Slots | None = None, state: Slots | None = None, index: int = 0, round: int = 0
) -> tuple[ClientContext, Slots]:
    """A client's context, and what it predicts with; without `state` it has never trained."""
    ctx = context_of(plan, None, index, round, newcomer=state is None)
    client = first_client(ctx) if state is None else state
    work = gather(ctx, client, download_of(plan, index, round, server), training=False)
    return ctx, plan.method.personal_model(ctx, work)


def take_batch(plan: Plan, size: int = 4, index: int = 0) -> Batch:
    """A client's first training samples."""
    x, y = plan.split(index, "train")
    return Batch(x[:size], y[:size], torch.ones(size))


def pad_batch(batch: Batch) -> Batch:
    """A batch with one sample more, of weight zero."""
    x, y = (torch.cat([part, part[:1]]) for part in batch[:2])
    return Batch(x, y, torch.cat([batch.weight, torch.zeros(1)]))


def to_double(slots: Slots) -> Slots:
    """Slots in double precision, for finite differences."""
    return {slot: tree.map(Tensor.double, leaves) for slot, leaves in slots.items()}


def make_upload(slots: Slots, samples: float = 1.0) -> Upload:
    """An upload of a client with so many training samples; without a model unless there is one in `slots`."""
    return Upload({"params": {}, "buffers": {}, **slots, "weight": {"samples": torch.tensor(samples)}})


def numeric_gradient(function: Callable[[Tree], Any], at: Mapping[str, Tensor], nudge: float = 1e-6) -> Tree:
    """The gradient of a function of a tree, coordinate by coordinate, by central differences.

    >>> numeric_gradient(lambda p: (p["w"] ** 2).sum(), {"w": torch.tensor([1.0, 3.0])}, nudge=0.25)
    {'w': tensor([2., 6.])}
    """

    def of_leaf(name: str, leaf: Tensor) -> Tensor:
        moves = nudge * torch.eye(leaf.numel(), dtype=leaf.dtype).reshape(-1, *leaf.shape)
        ends = [[float(function({**at, name: leaf + sign * move})) for sign in (1, -1)] for move in moves]
        return torch.tensor([(up - down) / (2 * nudge) for up, down in ends], dtype=leaf.dtype).reshape(leaf.shape)

    return {name: of_leaf(name, leaf) for name, leaf in at.items()}
