"""A plan: everything that determines what clients and server compute, and nothing about how or where.
Every engine, and a client on another machine, is given one and builds its contexts from it."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..contract import ClientContext, Method, ServerContext, Training
from ..core.errors import ModelError
from ..core.randomness import generator, torch_seed
from ..data import Client, Federation
from ..data.samples import Draw
from ..task.network import Net
from ..task.task import Task
from .presence import Presence

NO_NUMBERS = torch.zeros(0, dtype=torch.long)

LATE_BYTES = 64 << 20
"""Bytes of inputs that are taken at once where they are read when they are needed."""


class Part(NamedTuple):
    """Some samples of a client, named by their positions, so that a pass over them copies them only once; `draw` says
    in which pass over training samples, on which random transforms depend."""

    client: Client
    positions: Tensor
    device: str
    draw: Draw | None = None

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.positions)

    def take(self, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all samples, or of chosen ones in their order."""
        x, y = self.client.take(self.positions if chosen is None else self.positions[chosen], self.draw)
        return x.to(self.device), y.to(self.device)

    @property
    def is_plain(self) -> bool:
        """Whether the samples are rows of a tensor, as they are."""
        return not self.client.late and self.client.shift is None and self.client.transform is None

    def cutter(self, chosen: Tensor) -> Callable[[slice], tuple[Tensor, Tensor]]:
        """Gives cuts of chosen samples, which are gathered here and now unless they are read when they are needed."""
        if self.client.late:
            return lambda cut: self.take(chosen[cut])
        x, y = self.take(chosen)
        return lambda cut: (x[cut], y[cut])


def join_parts(parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of several parts, one after another; where they lie in one array, copied only once."""
    first = parts[0].client
    if all(part.client.x is first.x and part.client.y is first.y and part.is_plain for part in parts):
        return parts[0]._replace(positions=torch.cat([part.positions for part in parts])).take()
    xs, ys = zip(*(part.take() for part in parts), strict=True)
    return torch.cat(xs), torch.cat(ys)


def split_parts(parts: Sequence[Part], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of several parts, one after another, in batches of at most `size`; of fewer, and never of two
    parts, where they are read when they are needed."""
    if not any(part.client.late for part in parts):
        x, y = join_parts(parts)
        yield from zip(torch.split(x, size), torch.split(y, size), strict=True)
        return
    for part in parts:
        for positions in torch.split(part.positions, min(size, late_size(part.client))):
            yield part._replace(positions=positions).take()


def late_size(client: Client) -> int:
    """How many samples of a client are taken at once where they are read when they are needed."""
    return max(1, LATE_BYTES // max(4, 4 * client.x.shape[1:].numel()))


@dataclass(frozen=True)
class Plan:
    """What is trained, by which method, on which data, with which training options.

    Attributes:
        method: the method, outermost wrapper first.
        tasks: the model; several where clients have different networks.
        data: the federation.
        rounds: how many rounds there are.
        training: how clients train.
        participation: the share of clients that take part in a round.
        networks: for each client its network's position in `tasks`; empty where there is one.
        after_local: also evaluate participants right after local training.
        eval_global: also evaluate the shared model itself, on every client's data.
        eval_clients: how many clients are evaluated, of those that take part and of those that never do; None is all.
        built_by: for each network the expression that builds it; "" of one that was given built.
        known_facts: the samples and class counts of clients whose data are elsewhere.
        presence: when clients are there, and how often they fail.
        sampling_seed, init_seed: determine who takes part, and the first values of extra networks; None is the
            training's.
    """

    method: Method
    tasks: tuple[Task, ...]
    data: Federation
    rounds: int
    training: Training = field(default_factory=Training)
    participation: float = 1.0
    networks: tuple[int, ...] = ()
    after_local: bool = False
    eval_global: bool = False
    eval_clients: int | None = None
    built_by: tuple[str, ...] = ()
    known_facts: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    presence: Presence = field(default_factory=Presence)
    sampling_seed: int | None = None
    init_seed: int | None = None

    def __post_init__(self) -> None:
        reason = self.method.refuses.other_networks
        own_heads = not self.method.refuses.why_not_own_labels
        if reason and len(self.tasks) > 1 and not (own_heads and self.shares_rest):
            raise ModelError(
                f"{self.method.name}: {reason}, so all clients need the same network, but they have "
                f"{len(self.tasks)}; give one model"
            )

    @property
    def device(self) -> str:
        """Where tensors live."""
        return self.training.device

    @cached_property
    def nets(self) -> Mapping[str, Net]:
        """The method's extra networks, initialised alike everywhere."""
        with torch.random.fork_rng(devices=[]):
            seed = self.training.seed if self.init_seed is None else self.init_seed
            torch.manual_seed(torch_seed(seed, "modules"))
            nets = {name: Net(module) for name, module in self.method.modules(self.tasks[0]).items()}
        for net in nets.values():
            net.to(self.device)
        return nets

    @property
    def networks_used(self) -> list[Net]:
        """All networks: those of the tasks and the method's extra ones."""
        return [*(task.net for task in self.tasks), *self.nets.values()]

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether what is computed for one sample depends on the others of its batch, so that padding would show."""
        modules = (module for net in self.nets.values() for module in net.module.modules())
        norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
        return norm or self.method.needs.min_batch > 1 or any(task.mixes_samples for task in self.tasks)

    @cached_property
    def shares_rest(self) -> bool:
        """Whether clients' networks differ in what stays on the clients alone, such as heads for their own classes, so
        that the server has one model of the rest."""
        shapes = [
            {n: leaf.shape for leaves in task.initial.values() for n, leaf in leaves.items()} for task in self.tasks
        ]
        sent = [
            {name: shape for name, shape in known.items() if name not in self.method.private_names(task)}
            for task, known in zip(self.tasks, shapes, strict=True)
        ]
        return any(known != shapes[0] for known in shapes) and bool(sent[0]) and all(part == sent[0] for part in sent)

    def server_network(self, index: int) -> int:
        """The position of a client's network among those that the server keeps."""
        return self.networks[index] if self.networks and not self.shares_rest else 0

    def task_of(self, index: int) -> Task:
        """The task of a client, with its network."""
        return self.tasks[self.networks[index] if self.networks else 0]

    def context(self, index: int, round: int, newcomer: bool = True) -> ClientContext:
        """The context of one client in one round."""
        samples, class_counts = self.facts(index)
        return ClientContext(
            method=self.method,
            task=self.task_of(index),
            nets=self.nets,
            training=self.training,
            round=round,
            rounds=self.rounds,
            index=index,
            variant=self.method.variant(index),
            newcomer=newcomer,
            samples=samples,
            class_counts=class_counts,
            class_numbers=self.class_numbers(index),
        )

    def server(self, round: int) -> ServerContext:
        """The server's context in one round."""
        return ServerContext(
            method=self.method,
            task=self.tasks[0],
            nets=self.nets,
            training=self.training,
            round=round,
            rounds=self.rounds,
            tasks=self.tasks[:1] if self.shares_rest else self.tasks,
            clients=self.data.seen,
            network_of={} if self.shares_rest else dict(enumerate(self.networks)),
        )

    def participants(self, round: int, there: Collection[int] | None = None) -> Sequence[int]:
        """The clients that take part in a round: a uniform share of those that are there by the schedule and, if it is
        given, by `there`; all of them during set-up."""
        clients = self.presence.choose(self.data.seen, round)
        if there is not None:
            clients = [index for index in clients if index in there]
        if round < 0 or not clients:
            return clients
        count = max(1, builtins.round(self.participation * len(clients)))
        chosen = generator(self._sampling_seed, "select", round).choice(len(clients), size=count, replace=False)
        return sorted(clients[at] for at in chosen)

    @cached_property
    def first_participants(self) -> Sequence[int]:
        """The clients that take part in the first round that has some."""
        return next(filter(None, map(self.participants, range(self.rounds))), self.data.seen)

    def fate(self, index: int, round: int) -> str:
        """What becomes of a participant: its upload arrives, it drops out, or its upload comes too late."""
        return self.presence.fate(index, round, self._sampling_seed)

    @property
    def _sampling_seed(self) -> int:
        return self.training.seed if self.sampling_seed is None else self.sampling_seed

    @cached_property
    def evaluated(self) -> Sequence[int]:
        """The clients that are evaluated among those that may take part: all, or a sample that the seed fixes."""
        return self._draw_evaluated(self.data.seen, "evaluated")

    @cached_property
    def evaluated_unseen(self) -> Sequence[int]:
        """The clients that are evaluated among those that never take part."""
        return self._draw_evaluated(sorted(self.data.unseen), "evaluated unseen")

    def _draw_evaluated(self, clients: Sequence[int], stream: str) -> Sequence[int]:
        if self.eval_clients is None or self.eval_clients >= len(clients):
            return clients
        chosen = generator(self.training.seed, stream).choice(len(clients), size=self.eval_clients, replace=False)
        return sorted(clients[at] for at in chosen)

    def part(self, index: int, which: str) -> Part:
        """A client's data, not yet gathered: `train` and `holdout` share one split, `public` is everybody's."""
        if which in ("public", "next public"):
            assert self.data.public is not None
            x, y = self.data.public
            everything = torch.arange(len(x))
            empty = everything[:0]
            client = Client("public", x, y, everything, empty, empty, transform=self.data.transform)
            return Part(client, everything, self.device)
        client = self.data.clients[index]
        positions = getattr(client, "train" if which == "holdout" else which).long()
        if which in ("train", "holdout") and self.method.needs.holdout > 0:
            order = torch.from_numpy(generator(self.training.seed, "holdout", index).permutation(len(positions)))
            cut = min(round(self.method.needs.holdout * len(positions)), len(positions) - 1)
            positions = positions[order[:cut] if which == "holdout" else order[cut:].sort().values]
        elif which == "holdout":
            positions = positions[:0]
        return Part(client, positions, self.device)

    def passed(self, index: int, which: str, round: int, epoch: int) -> Part:
        """The same in a pass of training, in which random transforms apply to training samples."""
        part = self.part(index, which)
        return part._replace(draw=Draw(self.training.seed, index, round, epoch)) if which == "train" else part

    def split(self, index: int, which: str, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a part of a client's data, or of its first samples."""
        part = self.part(index, which)
        return part._replace(positions=part.positions[:most]).take()

    def facts(self, index: int) -> tuple[Tensor, Tensor]:
        """How many training samples a client has, and how many of each class."""
        if index in self.known_facts:
            return self.known_facts[index]
        if index not in self._facts:
            part = self.part(index, "train")
            y = part.client.y[part.positions]  # counted where the data are, which costs no wait for a device
            classes = self.data.classes
            counts = torch.bincount(y.reshape(-1), minlength=classes) if classes else torch.zeros(0)
            self._facts[index] = (
                torch.tensor(float(len(y)), device=self.device),
                counts.to(self.device, torch.float32),
            )
        return self._facts[index]

    def class_numbers(self, index: int) -> Tensor:
        """The number of each of a client's classes among those of all, where each client has its own; else none."""
        if not self._own_labels:
            return NO_NUMBERS
        if index not in self._numbers:
            known = self.data.class_numbers(self.data.clients[index])
            numbers = torch.zeros(self.data.classes or 0, dtype=torch.long)
            numbers[: len(known)] = known
            self._numbers[index] = numbers.to(self.device)
        return self._numbers[index]

    @cached_property
    def _own_labels(self) -> bool:
        return bool(self.data.own_labels)

    @cached_property
    def _numbers(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _facts(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}
