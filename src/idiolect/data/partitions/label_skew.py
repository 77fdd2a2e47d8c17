"""Partitions by label: clients that see other classes than their neighbours, or other shares of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.errors import DataError
from ...core.options import option
from ..splits import Indices
from .base import Groups, Labels, Partition, partitions
from .dealing import Counts, deal, portion, redraw


def _labels(rule: Partition, labels: Labels) -> np.ndarray:
    if labels is None:
        raise DataError(f"{rule} deals by label, but the targets are not one class per sample; use iid or quantity")
    return labels


@partitions.register("dirichlet", "dir")
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label skew: the smaller alpha, the fewer classes a client has.

    `form=spread` draws for every class how it is spread over the clients, from Dir(alpha); with `balanced`, clients
    that already hold their even share get nothing more (as PFLlib does). `form=mixture` draws for every client
    a label mixture from Dir(alpha); clients of equal size then take turns, one sample at a time, each from its own
    mixture over the classes that are left (in the manner of FedEM's experiments).

    >>> str(partitions.build("dirichlet(0.1, preset=pfllib)"))
    'dirichlet(alpha=0.1, min_size=40, balanced=true)'
    """

    summary: ClassVar[str] = "label skew by a Dirichlet distribution; smaller alpha, more skew"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "pfllib": {"balanced": True, "min_size": 40},
        "fedem": {"alpha": 0.4, "form": "mixture"},
    }

    alpha: float = option(0.1, above=0.0, help="concentration; small values give few classes each")
    min_size: int = option(10, min=1, help="redraw until every client has this many samples")
    balanced: bool = option(False, help="form=spread: nothing more for clients that hold their even share")
    form: str = option("spread", choices=("spread", "mixture"), help="classes over clients, or labels within a client")

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """Draw the numbers of samples until every client has enough, then deal."""
        labels = _labels(self, labels)
        sizes = np.unique(labels, return_counts=True)[1]
        draw = self._spread if self.form == "spread" else self._mixture
        advice = "Use a larger alpha, fewer clients, a smaller min_size or balanced=true."
        counts = redraw(self, lambda: draw(sizes, clients, rng), n, clients, self.min_size, advice)
        return deal(labels, counts, rng)

    def _spread(self, sizes: Counts, clients: int, rng: np.random.Generator) -> Counts:
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        for row, size in enumerate(sizes):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            if self.balanced:
                room = counts.sum(0) < sizes.sum() / clients
                shares = np.where(room, shares, 0.0) if shares[room].sum() > 0 else room.astype(np.float64)
            counts[row] = portion(int(size), shares)
        return counts

    def _mixture(self, sizes: Counts, clients: int, rng: np.random.Generator) -> Counts:
        mixtures = rng.dirichlet(np.full(len(sizes), self.alpha), size=clients)
        counts, left = np.zeros((len(sizes), clients), dtype=np.int64), sizes.copy()
        for turn, chance in enumerate(rng.random(sizes.sum())):
            client = turn % clients
            mixture = np.cumsum(mixtures[client] * (left > 0))
            if mixture[-1] <= 0:
                mixture = np.cumsum(left)
            chosen = np.searchsorted(mixture, chance * mixture[-1], side="right")
            counts[chosen, client] += 1
            left[chosen] -= 1
        return counts


@partitions.register("pathological", "path")
@dataclass(frozen=True)
class Pathological(Partition):
    """Every client has a few classes; a class is divided evenly among the clients that have it."""

    summary: ClassVar[str] = "a few classes per client, every class with equally many clients"

    classes_per_client: int = option(2, min=1, help="classes of each client")

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """Choose the classes of each client, then divide every class."""
        labels = _labels(self, labels)
        sizes = np.unique(labels, return_counts=True)[1]
        wanted = self.classes_per_client
        if wanted > len(sizes):
            raise DataError(f"{self}: the data have {len(sizes)} classes, so a client cannot have {wanted} of them")
        if wanted * clients < len(sizes):
            raise DataError(
                f"{self}: {clients} clients with {wanted} classes each cannot hold all {len(sizes)} classes;"
                f" use at least {-(-len(sizes) // wanted)} clients or more classes per client"
            )
        holds = np.zeros((len(sizes), clients), dtype=np.int64)
        for client in range(clients):
            # The classes with the fewest holders first, ties broken at random.
            chosen = np.lexsort((rng.random(len(sizes)), holds.sum(1)))[:wanted]
            holds[chosen, client] = 1
        counts = np.stack([portion(int(size), row.astype(np.float64)) for size, row in zip(sizes, holds, strict=True)])
        return deal(labels, counts, rng)


@partitions.register("shards")
@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by label are cut into shards of equal size, which are dealt at random."""

    summary: ClassVar[str] = "shards of samples sorted by label, dealt at random"

    per_client: int = option(2, min=1, help="shards of each client")

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """Sort, cut and deal."""
        labels = _labels(self, labels)
        if n < clients * self.per_client:
            raise DataError(
                f"{self}: {n} samples cannot be cut into {clients} x {self.per_client} shards; use fewer of them"
            )
        shuffled = rng.permutation(n)
        shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients * self.per_client)
        order = rng.permutation(len(shards)).reshape(clients, self.per_client)
        return [np.sort(np.concatenate([shards[shard] for shard in row])) for row in order]
