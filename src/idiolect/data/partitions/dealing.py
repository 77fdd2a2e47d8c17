"""From numbers to samples: a matrix of how many samples of each class a client gets becomes lists of
sample numbers. What the numbers are is decided by the partitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..splits import Indices
from .base import Partition

TRIES = 1000

Counts = NDArray[np.int64]


def deal(labels: np.ndarray, counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """Shuffle every class and deal it out by `counts` [classes, clients].

    >>> dealt = deal(np.array([0, 0, 1]), np.array([[1, 1], [0, 1]]), np.random.default_rng(0))
    >>> [len(each) for each in dealt]
    [1, 2]
    """
    hands: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(np.unique(labels), counts, strict=True):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(hands, np.split(shuffled, np.cumsum(row)[:-1]), strict=True):
            hand.append(piece)
    return [np.sort(np.concatenate(hand)) for hand in hands]


def portion(total: int, shares: NDArray[np.float64]) -> Counts:
    """Whole numbers that add up to `total`, in the proportions of `shares`.

    >>> portion(10, np.array([1.0, 2.0, 0.0])).tolist()
    [3, 7, 0]
    """
    bounds = (np.cumsum(shares / shares.sum()) * total).astype(np.int64)
    bounds[np.flatnonzero(shares)[-1] :] = total
    return np.diff(bounds, prepend=0)


def redraw(rule: Partition, draw: Callable[[], Counts], n: int, clients: int, min_size: int, advice: str) -> Counts:
    """Draw until every client has `min_size` samples, but not for ever."""
    reached = 0
    if n >= clients * min_size:
        for _ in range(TRIES):
            counts = draw()
            smallest = int(counts.sum(0).min())
            if smallest >= min_size:
                return counts
            reached = max(reached, smallest)
        reason = f"in {TRIES} draws the smallest client never had more than {reached}"
    else:
        reason = f"that would take {clients * min_size} samples"
    raise DataError(
        f"{rule}: {n} samples cannot be dealt to {clients} clients with at least {min_size} each; {reason}. {advice}"
    )
