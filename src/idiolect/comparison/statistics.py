"""Statistics over seeds: intervals, paired differences, and the correction for testing several methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
"""Below this p-value, corrected for the number of tests, a difference stands."""


class Interval(NamedTuple):
    """A mean and half the width of its confidence interval, which is NaN where one value gives none."""

    mean: float
    half: float


class Paired(NamedTuple):
    """A mean difference, its confidence interval and the p-value of a paired t-test."""

    difference: float
    low: float
    high: float
    p: float


def interval(values: Sequence[float]) -> Interval:
    """The mean and its 95 % Student interval: mean ± t(0.975, n - 1) s / sqrt(n).

    Values that are not finite are left out. One value has no interval: the half width is NaN. Hand-worked: 1, 2, 3
    have s = 1 and t(0.975, 2) = 4.3027, so the half width is 4.3027 / sqrt(3) = 2.4841.

    >>> mean, half = interval([1, 2, 3])
    >>> mean, round(half, 4)
    (2.0, 2.4841)
    """
    numbers = np.asarray(values, float)
    numbers = numbers[np.isfinite(numbers)]
    if len(numbers) == 0:
        return Interval(math.nan, math.nan)
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return Interval(mean, math.nan)
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return Interval(mean, _quantile(len(numbers) - 1) * error)


SPREADS = {"std": "std", "se": "standard error", "interval": "95 %", "none": ""}
"""How much scores differ from seed to seed, and what that is called."""


def spread_over_seeds(values: Sequence[float], kind: str) -> Interval:
    """The mean and, by `kind`, the standard deviation, the standard error or half of the 95 % interval.

    >>> [round(spread_over_seeds([1, 2, 3], kind).half, 3) for kind in ("std", "se", "interval")]
    [1.0, 0.577, 2.484]
    """
    mean, half = interval(values)
    count = sum(math.isfinite(value) for value in values)
    if kind == "none" or math.isnan(half):
        return Interval(mean, math.nan)
    error = half / _quantile(count - 1)
    return Interval(mean, {"std": error * math.sqrt(count), "se": error, "interval": half}[kind])


def _quantile(degrees: int) -> float:
    """The quantile of Student's distribution that bounds a confidence interval."""
    from scipy.special import stdtrit  # SciPy is loaded when statistics are asked for

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def compare_pairs(a: Sequence[float], b: Sequence[float]) -> Paired:
    """How much `a` exceeds `b`, value by value: the mean difference, its 95 % interval, and p of the paired t-test.

    Pairs of which a value is not finite are left out. One pair gives neither interval nor p (NaN). Where all
    differences are equal, p is 1 if they are 0, else 0.

    >>> difference, low, high, p = compare_pairs([3, 5, 7], [2, 3, 4])
    >>> difference, round(low, 4), round(high, 4), round(p, 4)
    (2.0, -0.4841, 4.4841, 0.0742)
    """
    pairs = zip(a, b, strict=True)
    differences = np.array([x - y for x, y in pairs if math.isfinite(x) and math.isfinite(y)], float)
    mean, half = interval(differences.tolist())
    if math.isnan(half):
        return Paired(mean, math.nan, math.nan, math.nan)
    if half == 0:
        return Paired(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    from scipy.special import stdtr

    degrees = len(differences) - 1
    t = mean * _quantile(degrees) / half
    return Paired(mean, mean - half, mean + half, float(2 * stdtr(degrees, -abs(t))))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m p-values is multiplied by m - k + 1, kept in order.

    NaN stands for a test that was not made: it stays NaN and does not count among the m.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [math.nan] * len(pvalues), 0.0
    tests = [at for at, p in enumerate(pvalues) if not math.isnan(p)]
    for place, at in enumerate(sorted(tests, key=lambda at: pvalues[at])):
        largest = max(largest, min(1.0, (len(tests) - place) * pvalues[at]))
        adjusted[at] = largest
    return adjusted
