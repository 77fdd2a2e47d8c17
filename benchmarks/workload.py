"""The common workload of the speed benchmarks, and the two yardsticks without Idiolect's engines: the bare PyTorch
steps of the same work, and a federation written the way users write it."""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from idiolect.data import Client, Federation
from idiolect.models import build

TRAIN, TEST, LR = 320, 64, 0.01


@dataclass(frozen=True)
class Work:
    """A network, the shape of its inputs and the batch size."""

    name: str
    model: str
    shape: tuple[int, int, int]
    batch: int


WORKS = (
    Work("MLP b32", "mlp(hidden=[200])", (1, 28, 28), 32),
    Work("LeNet-5w b32", "lenet5w", (3, 32, 32), 32),
    Work("CNN-4 b10", "cnn4", (1, 28, 28), 10),
    Work("CNN-4 b64", "cnn4", (1, 28, 28), 64),
)


def find_work(name: str) -> Work:
    """The workload of a name."""
    return next(each for each in WORKS if each.name == name)


def federation(work: Work, clients: int, val: int = 0) -> Federation:
    """Clients of random images; speed does not depend on what they show. `val` is how many validation samples each
    client has."""
    draw = torch.Generator().manual_seed(0)
    total = clients * (TRAIN + TEST + val)
    x = torch.randn(total, *work.shape, generator=draw)
    y = torch.randint(0, 10, (total,), generator=draw)
    members = []
    for number in range(clients):
        mine = torch.arange(number * (TRAIN + TEST + val), (number + 1) * (TRAIN + TEST + val))
        train, test, validation = mine.split((TRAIN, TEST, val))
        members.append(Client(f"client {number}", x, y, train, validation, test))
    return Federation(tuple(members), "random images", 10, "given", "0" * 12)


def network(work: Work, data: Federation) -> nn.Module:
    """The network, with the same initial values for everybody."""
    return build(work.model, data, seed=0)


class Apart:
    """Work in processes of their own, whose allocator nobody has tuned: each prepares its part once and then does it
    once per round."""

    def __init__(self, prepare: Callable[..., Callable[[], None]], *parts: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.children = [], []
        for part in parts:
            mine, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, prepare, part), daemon=True)
            child.start()
            self.pipes.append(mine)
            self.children.append(child)

    def round(self) -> float:
        """Seconds until every part is done."""
        started = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(True)
        for pipe in self.pipes:
            pipe.recv()
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self.pipes:
            pipe.send(False)
        for child in self.children:
            child.join()


def _serve(pipe: Connection, prepare: Callable[..., Callable[[], None]], part: tuple[Any, ...]) -> None:
    do = prepare(*part)
    while pipe.recv():
        do()
        pipe.send(True)


def bare(work: Work, clients: int, processes: int = 2) -> Apart:
    """The bare PyTorch steps of the same work, without any federation: two processes of one thread each, plain SGD
    steps on one module, then the test data of every client through the model."""
    return Apart(_bare, *((work, clients, number, processes) for number in range(processes)))


def _bare(work: Work, clients: int, number: int, processes: int) -> Callable[[], None]:
    torch.set_num_threads(1)
    data = federation(work, clients)
    mine = [each.split("train") + each.split("test") for each in data.clients[number::processes]]
    model = network(work, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def do() -> None:
        for x, y, x_test, _ in mine:
            model.train()
            order = torch.randperm(len(x))
            for chosen in order.split(work.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                model(x_test).argmax(1)

    return do


def naive(work: Work, clients: int) -> Apart:
    """A federation the way users write it: a deep copy of the model, a data loader and an optimiser per client, and
    an evaluation of everything each round, on all cores."""
    return Apart(_naive, (work, clients))


def _naive(work: Work, clients: int) -> Callable[[], None]:
    data = federation(work, clients)
    shared = network(work, data)
    train = [TensorDataset(*each.split("train")) for each in data.clients]
    test = [TensorDataset(*each.split("test")) for each in data.clients]

    def do() -> None:
        trained = []
        for each in train:
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            model.train()
            for x, y in DataLoader(each, work.batch, shuffle=True):
                optimizer.zero_grad()
                nn.CrossEntropyLoss()(model(x), y).backward()
                optimizer.step()
            trained.append(model.state_dict())
        mean = {name: torch.stack([each[name] for each in trained]).mean(0) for name in trained[0]}
        shared.load_state_dict(mean)
        shared.eval()
        with torch.no_grad():
            for each in (*train, *test):
                for x, y in DataLoader(each, work.batch):
                    outputs = shared(x)
                    nn.CrossEntropyLoss()(outputs, y).item()
                    (outputs.argmax(1) == y).sum().item()

    return do
