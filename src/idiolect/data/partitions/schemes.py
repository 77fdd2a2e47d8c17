"""Partitions that do not look at labels: equal and unequal sizes, natural groups, feature shift, and a
saved partition. Those by label are in `label_skew`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.errors import DataError
from ...core.names import natural_key
from ...core.options import option
from ..splits import Indices
from .base import Groups, Labels, Partition, load_partition, partitions
from .dealing import Counts, deal, portion, redraw
from .shift import KINDS, Shift, shift_for


@partitions.register("iid")
@dataclass(frozen=True)
class Iid(Partition):
    """Samples are dealt at random in equal numbers."""

    summary: ClassVar[str] = "equal numbers of samples at random"

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """Shuffle and cut."""
        return [np.sort(part) for part in np.array_split(rng.permutation(n), clients)]


@partitions.register("quantity")
@dataclass(frozen=True)
class Quantity(Partition):
    """Size skew: labels are alike, numbers of samples follow a Dirichlet distribution."""

    summary: ClassVar[str] = "clients of very different size, labels alike"

    alpha: float = option(0.5, above=0.0, help="concentration; small values give unequal sizes")
    min_size: int = option(10, min=1, help="redraw until every client has this many samples")

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """Draw sizes until every client has enough, then deal."""

        def draw() -> Counts:
            return portion(n, rng.dirichlet(np.full(clients, self.alpha)))[None]

        advice = "Use a larger alpha, fewer clients or a smaller min_size."
        return deal(np.zeros(n), redraw(self, draw, n, clients, self.min_size, advice), rng)


@partitions.register("group", "natural", "site", "writer", "subject")
@dataclass(frozen=True)
class Group(Partition):
    """One client per natural group; with `clients`, a random choice of that many groups."""

    summary: ClassVar[str] = "one client per natural group (site, writer, subject)"

    def how_many(self, groups: Groups) -> int:
        """The number of groups."""
        return len(np.unique(_require_groups(groups)))

    def assign(self, labels: Any, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """All samples of each chosen group."""
        names, number = np.unique(_require_groups(groups), return_inverse=True)
        if names.dtype.kind in "UO":  # as people sort them: site 2 before site 10
            order = sorted(range(len(names)), key=lambda at: natural_key(str(names[at])))
            number = np.argsort(order)[number]
        if clients > len(names):
            raise DataError(
                f"{clients} clients were asked for, but the data have {len(names)} natural groups; ask for fewer"
            )
        chosen = np.sort(rng.choice(len(names), clients, replace=False))
        return [np.flatnonzero(number == group) for group in chosen]


def _require_groups(groups: Groups) -> np.ndarray:
    if groups is None:
        raise DataError("the data have no natural groups; choose another partition, such as dirichlet(alpha=0.1)")
    return groups


@partitions.register("feature")
@dataclass(frozen=True)
class Feature(Partition):
    """Feature shift: samples are dealt by another partition, and each client's inputs are transformed its own way.

    >>> [str(shift) for shift in partitions.build("feature:rotate").shifts(4)]
    ['None', 'rotate(90)', 'rotate(180)', 'rotate(270)']
    """

    summary: ClassVar[str] = "each client's inputs rotated, blurred, inverted or noisy in its own way"

    kind: str = option(
        "rotate", choices=(*KINDS, "mixed"), help="the transformation; mixed: another kind for each client"
    )
    strength: float = option(1.0, min=0.0, max=1.0, help="0 leaves all clients alike")
    base: str = option("iid", help="the partition that deals the samples")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._base

    @property
    def _base(self) -> Partition:
        return partitions.build(self.base)

    def how_many(self, groups: Groups) -> int | None:
        """As the base says."""
        return self._base.how_many(groups)

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """As the base deals."""
        return self._base.assign(labels, n, clients, rng, groups)

    def shifts(self, clients: int) -> list[Shift | None]:
        """The transformation of each client by its position."""
        return [shift_for(self.kind, self.strength, position, clients) for position in range(clients)]


@partitions.register("file")
@dataclass(frozen=True)
class File(Partition):
    """A partition that `save_partition` wrote."""

    summary: ClassVar[str] = "a saved partition"

    path: str = option("partition.json", help="the file that save_partition wrote")

    def how_many(self, groups: Groups) -> int:
        """The number of clients in the file."""
        return len(load_partition(self.path).indices)

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """The sample numbers in the file."""
        saved = load_partition(self.path)
        if saved.samples != n:
            raise DataError(f"{self} was made for {saved.samples} samples, but the data have {n}; use the same data")
        if clients != len(saved.indices):
            raise DataError(f"{self} has {len(saved.indices)} clients, not {clients}; leave out the number of clients")
        return list(saved.indices)

    def shifts(self, clients: int) -> list[Shift | None]:
        """As the saved partition transforms."""
        return load_partition(self.path).partition.shifts(clients)
