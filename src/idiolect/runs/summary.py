"""From metrics per client to the numbers of a table: the one evaluation protocol (docs/protocol.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .store import Row

if TYPE_CHECKING:
    import polars as pl

SCHEMA = {
    "round": int,
    "client": int,
    "cohort": str,
    "point": str,
    "split": str,
    "metric": str,
    "value": float,
    "samples": int,
}


def table(rows: Iterable[Row]) -> pl.DataFrame:
    """Metrics as a table: one row per round, client, point, split and metric; rounds count from 1."""
    import polars as pl  # which takes long to import

    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row").with_columns(pl.col("round") + 1)


def spread(values: Sequence[float], weights: Sequence[float], higher_is_better: bool = True) -> dict[str, float]:
    """How a metric spreads over clients: weighted and plain mean, deviation, worst client, bottom decile.

    The bottom decile is the max(1, floor(N / 10))-th worst client.

    >>> spread([0.5, 1.0], [3, 1])
    {'weighted': 0.625, 'mean': 0.75, 'std': 0.25, 'worst': 0.5, 'bottom_decile': 0.5}
    """
    if len(values) == 0:
        return dict.fromkeys(("weighted", "mean", "std", "worst", "bottom_decile"), math.nan)
    numbers, weight = np.asarray(values, float), np.asarray(weights, float)
    worst_first = np.sort(numbers) if higher_is_better else np.sort(numbers)[::-1]
    return {
        "weighted": float(np.average(numbers, weights=weight)),
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "worst": float(worst_first[0]),
        "bottom_decile": float(worst_first[max(1, len(numbers) // 10) - 1]),
    }


def by_round(
    rows: Sequence[Row], cohort: str, point: str, split: str, metric: str
) -> dict[int, tuple[list[float], list[int]]]:
    """Values and sample counts of one metric over clients, for every evaluated round, clients in order."""
    scores: dict[int, list[tuple[int, float, int]]] = {}
    for round, client, *where, value, samples in rows:
        if where == [cohort, point, split, metric]:
            scores.setdefault(round, []).append((client, value, samples))
    ordered = {round: sorted(clients) for round, clients in sorted(scores.items())}
    return {round: ([v for _, v, _ in clients], [n for _, _, n in clients]) for round, clients in ordered.items()}


def weighted_mean(values: Sequence[float], samples: Sequence[int]) -> float:
    """The sample-weighted mean."""
    return float(np.average(values, weights=samples))


def is_better(a: float, b: float, higher_is_better: bool) -> bool:
    """Whether score a beats score b; a number beats one that is not."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(b) and not math.isnan(a)
    return a > b if higher_is_better else a < b


def headline(rows: Sequence[Row], cohort: str, point: str, metric: str, higher: bool, selected: int) -> dict[str, Any]:
    """The blocks `selected`, `last` and `best` of one cohort.

    `selected` is the round with the best sample-weighted validation score of the federation; `best` is the best
    round by test score, which papers often report and which is optimistic: it is labelled as such everywhere.
    """
    tests = by_round(rows, cohort, point, "test", metric)
    if not tests:
        return {}
    best = None
    for round, scores in tests.items():
        if best is None or is_better(weighted_mean(*scores), weighted_mean(*tests[best]), higher):
            best = round
    chosen = {"selected": selected if selected in tests else max(tests), "last": max(tests), "best": best}
    return {name: spread(*tests[r], higher) | {"round": r + 1} for name, r in chosen.items() if r is not None}
