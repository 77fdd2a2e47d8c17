"""The clients of one pool as a few arrays: a client is made when it is looked at, so that a million of them take no
more memory than the numbers of their samples and their names. What is asked of all is answered from the arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .client import Client
from .partitions.shift import Shift
from .samples import Inputs, digest_rows
from .splits import SPLITS

if TYPE_CHECKING:
    from .transforms import Transforms

BLOCK = 4096
"""Clients whose samples are gathered at once."""
SHOWN = 20
"""Clients that are shown."""


class PoolClients(Sequence[Client]):
    """Clients that share the arrays of a pool.

    Args:
        x, y: the pool.
        names: the clients' names.
        positions: the samples of all clients, one client after another: those for training, validation and test.
        bounds: where each of these parts begins in `positions`, and where the last one ends.
        shifts: how each client's inputs are changed; empty where none are.
        transform: what is done to all inputs.

    >>> bounds = np.array([0, 1, 1, 2, 3, 3, 3])
    >>> clients = PoolClients(torch.eye(4), torch.arange(4), ["a", "b"], torch.tensor([2, 0, 3]), bounds)
    >>> len(clients), clients[1], clients.sizes.tolist()
    (2, Client('b', train=1, val=0, test=0), [[1, 0, 1], [1, 0, 0]])
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        names: Sequence[str],
        positions: Tensor,
        bounds: NDArray[np.int64],
        shifts: Sequence[Shift | None] = (),
        transform: Transforms | None = None,
    ) -> None:
        self.x, self.y, self.names, self.positions, self.bounds = x, y, names, positions, bounds
        self.shifts, self.transform = (shifts if any(shifts) else ()), transform

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Client: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Client, ...]: ...
    def __getitem__(self, at: int | slice) -> Client | tuple[Client, ...]:
        """A client, or several."""
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        at = range(len(self))[at]
        a, b, c, d = self.bounds[3 * at : 3 * at + 4].tolist()
        shift = self.shifts[at] if self.shifts else None
        parts = self.positions[a:b], self.positions[b:c], self.positions[c:d]
        return Client(self.names[at], self.x, self.y, *parts, shift, self.transform)

    def __repr__(self) -> str:
        """As a tuple of clients, of many only the first."""
        shown = [repr(self[at]) for at in range(min(len(self), SHOWN))]
        rest = [] if len(self) <= SHOWN else [f"... {len(self) - SHOWN:,} more"]
        return f"({', '.join([*shown, *rest])}{',' * (len(self) == 1)})"

    def __iter__(self) -> Iterator[Client]:
        """All clients."""
        return (self[at] for at in range(len(self)))

    def changed(self, **changes: Any) -> PoolClients:
        """The same with another array or transform."""
        return PoolClients(**{**vars(self), **changes})

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many samples each client has for training, validation and test: [clients, 3]."""
        return np.diff(self.bounds).reshape(-1, 3)

    def label_ranges(self, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """The smallest and the largest label of each client, of all its samples or of those for training."""
        flat = self.y.flatten(1) if self.y.ndim > 1 else self.y[:, None]
        starts, ends = self.bounds[:-1:3], self.bounds[1::3] if training else self.bounds[3::3]
        inside = np.stack([starts, ends], 1).reshape(-1)
        found = []
        for least, reduce in ((True, np.minimum), (False, np.maximum)):
            held = (flat.amin(1) if least else flat.amax(1))[self.positions].numpy()
            padded = np.append(held, held[:1])  # so that the end of all is a place, too
            found.append(reduce.reduceat(padded, inside)[::2])
        return found[0], found[1]

    def training_targets(self, chosen: Sequence[int]) -> Tensor:
        """The targets of some clients' training samples, one client after another."""
        starts, counts = self.bounds[:-1:3][list(chosen)], self.sizes[list(chosen), 0]
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        return self.y.index_select(0, self.positions[torch.from_numpy(places)])

    def digest(self) -> Iterator[bytes]:
        """Bytes that name the data of all clients and how they are split, some clients at a time."""
        assert isinstance(self.x, Tensor)
        bodies = (self.x, self.y)
        widths = [body[:1].nbytes if len(body) else 0 for body in bodies]
        for first in range(0, len(self), BLOCK):
            last = min(first + BLOCK, len(self))
            bounds = (self.bounds[3 * first : 3 * last + 1] - self.bounds[3 * first]).tolist()
            index = self.positions[self.bounds[3 * first] : self.bounds[3 * last]]
            rows = [memoryview(body[index].contiguous().numpy().tobytes()) for body in bodies]
            pieces: list[bytes | memoryview] = []
            for place in range(3 * (last - first)):
                at = first + place // len(SPLITS)
                if place % len(SPLITS) == 0:
                    pieces.append(f"{self.names[at]} {self.shifts[at] if self.shifts else None}".encode())
                start, end = bounds[place], bounds[place + 1]
                for body, width, held in zip(bodies, widths, rows, strict=True):
                    pieces += (describe_rows(body, end - start), held[start * width : end * width])
            yield b"".join(pieces)


def describe_rows(body: Inputs, count: int) -> bytes:
    """What a fingerprint says of so many rows, before the rows themselves."""
    return f"{[count, *body.shape[1:]]} {body.dtype}".encode()


def digest_body(body: Inputs, index: Tensor) -> Iterator[bytes]:
    """Bytes that name some rows of an array."""
    yield describe_rows(body, len(index))
    yield from digest_rows(body, index)


def digest_clients(clients: Sequence[Client]) -> Iterator[bytes]:
    """Bytes that name the data of all clients and how they are split."""
    if isinstance(clients, PoolClients) and isinstance(clients.x, Tensor):
        yield from clients.digest()
        return
    for client in clients:
        yield f"{client.name} {client.shift}".encode()
        for which in SPLITS:
            index = getattr(client, which).long()
            yield from digest_body(client.x, index)
            yield from digest_body(client.y, index)


def names_of(clients: Sequence[Client]) -> Sequence[str]:
    """The clients' names."""
    return clients.names if isinstance(clients, PoolClients) else [client.name for client in clients]


def distinct(clients: Sequence[Client]) -> Sequence[Client]:
    """Clients among whom there is everything that several may share: arrays, transforms and labels."""
    return clients[:1] if isinstance(clients, PoolClients) else clients


def sizes_of(clients: Sequence[Client]) -> NDArray[np.int64]:
    """How many samples each client has for training, validation and test: [clients, 3]."""
    if isinstance(clients, PoolClients):
        return clients.sizes
    return np.array([[len(getattr(client, which)) for which in SPLITS] for client in clients], np.int64).reshape(-1, 3)


def label_ranges(clients: Sequence[Client], training: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """The smallest and the largest label of each client, of all its samples or of those for training; all have some."""
    if isinstance(clients, PoolClients):
        return clients.label_ranges(training)
    labels = [client.y[client.train.long() if training else client.indices] for client in clients]
    return np.array([int(each.min()) for each in labels]), np.array([int(each.max()) for each in labels])


def training_targets(clients: Sequence[Client], chosen: Sequence[int]) -> Tensor:
    """The targets of some clients' training samples, one client after another."""
    if isinstance(clients, PoolClients):
        return clients.training_targets(chosen)
    held = (clients[at] for at in chosen)
    return torch.cat([client.y.index_select(0, client.train.long()) for client in held])


def gather_clients(
    x: Inputs, y: Tensor, names: Sequence[str], parts: Iterable[Sequence[NDArray[np.int64]]], most: int, **more: Any
) -> PoolClients:
    """Clients of a pool from what each has for training, validation and test, at `most` so many samples in all."""
    positions, bounds, end = np.empty(most, np.int64), np.zeros(3 * len(names) + 1, np.int64), 0
    for at, each in enumerate(parts):
        for which, index in enumerate(each):
            positions[end : end + len(index)] = index
            end += len(index)
            bounds[3 * at + which + 1] = end
    return PoolClients(x, y, names, torch.from_numpy(positions[:end].copy()), bounds, **more)
