"""Splits that are not random: by time, by session or by a column that says it. Where samples overlap, as windows of one
recording do, a random split has nearly the same samples in training and in test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.randomness import generator
from .splits import SPLITS, Indices, Shares, cut

KINDS = ("time", "session", "fold")
_NAMES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}


@dataclass(frozen=True, eq=False)
class Cutting:
    """What decides the split of every sample of a pool.

    Attributes:
        kind: `time`: the earliest are for training, the latest for test; `session`: samples with one value go to one
            split; `fold`: the value is the split (train, val or test).
        values: a value per sample.
        column: what the values are called, for messages.
    """

    kind: str
    values: np.ndarray
    column: str = "split"

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise DataError(f"{self.column} has the shape {list(self.values.shape)}; give one value per sample")
        if self.kind == "time" and self.values.dtype.kind not in "biufmMUT":
            raise DataError(
                f"{self.column} is of type {self.values.dtype}, which has no order in time; give numbers or dates"
            )

    def take(self, index: Any) -> Cutting:
        """The same for some samples of the pool."""
        return Cutting(self.kind, self.values[index], self.column)

    def cut(self, index: Indices, shares: Shares, rng: np.random.Generator) -> dict[str, Indices]:
        """Positions within `index` of one client's training, validation and test samples.

        >>> days = Cutting("time", np.array([5, 1, 4, 2, 3]))
        >>> parts = days.cut(np.arange(5), (0.6, 0.2, 0.2), np.random.default_rng(0))
        >>> {which: positions.tolist() for which, positions in parts.items()}
        {'train': [1, 3, 4], 'val': [2], 'test': [0]}
        """
        values = self.values[index]
        if self.kind == "time":
            return _by_time(values, shares, rng)
        return _by_session(values, shares, rng) if self.kind == "session" else self._by_fold(values)

    def _by_fold(self, values: np.ndarray) -> dict[str, Indices]:
        names = [_NAMES.get(name, name) for name in (str(value).strip().lower() for value in values)]
        if unknown := [value for value, name in zip(values, names, strict=True) if name not in SPLITS]:
            raise DataError(
                f"{self.column} holds {str(unknown[0])!r}, but must say train, val or test for every sample"
            )
        return {which: np.flatnonzero(np.array(names) == which) for which in SPLITS}


def _by_time(values: np.ndarray, shares: Shares, rng: np.random.Generator) -> dict[str, Indices]:
    order = np.argsort(values, kind="stable")
    sizes = {which: len(part) for which, part in cut(len(values), shares, rng).items()}
    ends = np.cumsum([sizes[which] for which in SPLITS])
    return {which: np.sort(part) for which, part in zip(SPLITS, np.split(order, ends[:-1]), strict=True)}


def _by_session(values: np.ndarray, shares: Shares, rng: np.random.Generator) -> dict[str, Indices]:
    """Sessions in a random order; each goes to the split in whose share of the samples its middle lies. One stays for
    training."""
    _, numbered, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = rng.permutation(len(counts))
    sizes = counts[order]
    middles = (np.cumsum(sizes) - sizes / 2) / len(values)
    chosen = np.searchsorted([shares[2], shares[2] + shares[1]], middles, side="right")
    if not (chosen == 2).any():
        chosen[np.argmax(sizes)] = 2
    places = {order[at]: ("test", "val", "train")[chosen[at]] for at in range(len(order))}
    names = np.array([places[number] for number in numbered])
    return {which: np.flatnonzero(names == which) for which in SPLITS}


def cut_clients(
    dealt: Sequence[Indices], shares: Shares, cutting: Cutting | None, seed: int
) -> Iterator[list[Indices]]:
    """What each client has for training, validation and test of what it was dealt; by chance if nothing decides."""
    for position, index in enumerate(dealt):
        rng = generator(seed, "split", position)
        parts = cut(len(index), shares, rng) if cutting is None else cutting.cut(index, shares, rng)
        yield [index[parts[which]] for which in SPLITS]
