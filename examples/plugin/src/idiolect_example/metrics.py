"""A metric of which less is better."""

from __future__ import annotations

from torch import Tensor

from idiolect import Metric


def count_misses(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of samples of class 1 that are not found."""
    found = outputs.argmax(1) == 1
    return 1 - found[y == 1].double().mean()


misses = Metric(count_misses, higher_is_better=False, low=0.0, high=1.0)
