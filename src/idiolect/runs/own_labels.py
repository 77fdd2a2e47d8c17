"""Clients with labels of their own: which methods allow it, and the task of a network that only some of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..contract import Method
from ..contract import methods as registry
from ..core.errors import InputError, ModelError
from ..data import Client, Federation
from ..data.pool_clients import distinct
from ..task.losses import class_axis
from ..task.task import Task


def check_own_labels(method: Method, task: Task, data: Federation) -> None:
    """Raise an error where clients have labels of their own and a method averages what predicts them, or shares
    something of each class in a way that needs the same classes everywhere."""
    if len({client.labels for client in distinct(data.clients) if client.labels}) <= 1:
        return
    if reason := why_not_own_labels(method, task):
        able = ", ".join(name for name in registry if not why_not_own_labels(registry.build(name), task))
        raise InputError(
            f"{reason}, but each client has its own labels; use a method whose heads stay on the clients ({able}), or"
            f" give all clients the same set of labels"
        )


def why_not_own_labels(method: Method, task: Task) -> str:
    """Why clients cannot have labels of their own, each with an output layer for them; "" where they can."""
    params, refuses = method.slots["params"], method.refuses
    averaged = sorted(task.head() - method.private_names(task)) if params.home != "client" or params.up else []
    if averaged and not refuses.own_labels:
        return f"{method.name} averages the output layer ({averaged[0]}), whose outputs must mean the same everywhere"
    if method.needs.public:
        return f"{method.name} compares what all clients predict for public samples"
    return refuses.why_not_own_labels and f"{method.name}: {refuses.why_not_own_labels}"


def own_task(
    module: nn.Module, number: int, networks: Sequence[int], data: Federation, loss: Any, metrics: Any, head: str | None
) -> Task:
    """The task of one network among several, which has outputs for the classes of its own clients at least."""
    own = [client for client, network in zip(data.clients, networks, strict=True) if network == number]
    largest = max(own, key=count_classes, default=data.clients[0])
    x, y = largest.take(largest.train[:2].long())
    try:
        wanted = count_classes(largest)
        task = Task(module, (x, y), loss, metrics, wanted, head, data.layout)
    except ModelError as error:
        raise ModelError(f"network {number}, of client {largest.name!r}: {error}") from error
    logits = task.example_output.outputs.shape[class_axis(task.example_output.outputs, y)]
    task.classes = task.all_classes = min(data.classes or 0, logits) if logits >= wanted else data.classes
    return task


def count_classes(client: Client) -> int:
    """How many classes a client's own network needs outputs for."""
    return len(client.labels) or int(client.y[client.indices].max()) + 1
