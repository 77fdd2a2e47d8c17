"""From metrics per client to the numbers of a table: the one evaluation protocol (docs/protocol.md).

One rule holds for all means, spreads and comparisons: a value that is not finite, or that was measured on no sample, is
left out together with its weight."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.checksums import add_checksum, take_checksum
from ..core.files import finite_or_null
from .store import Row

if TYPE_CHECKING:
    import polars as pl

ClientScores = Mapping[int, tuple[float, int]]
"""The values of one metric in one round, with the samples they were measured on, by client."""
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


def table(rows: Iterable[Row], clients: Sequence[str]) -> pl.DataFrame:
    """Metrics as a table: one row per round, client, point, split and metric; rounds count from 1. `name` is the
    client's name; what the server recorded has none."""
    import polars as pl  # which takes long to import

    names = pl.DataFrame({"client": range(len(clients)), "name": clients}, {"client": pl.Int64, "name": pl.String})
    numbered = pl.DataFrame(list(rows), schema=SCHEMA, orient="row").with_columns(pl.col("round") + 1)
    return numbered.join(names, on="client", how="left", maintain_order="left")


def is_defined(value: float, weight: float) -> bool:
    """Whether a value counts: it is finite, and was measured on something."""
    return math.isfinite(value) and weight > 0


def leave_out_undefined(scores: ClientScores) -> ClientScores:
    """The scores that count, clients in order.

    >>> leave_out_undefined({1: (0.5, 3), 0: (math.nan, 9)})
    {1: (0.5, 3)}
    """
    return {client: score for client, score in sorted(scores.items()) if is_defined(*score)}


def spread(values: Sequence[float], weights: Sequence[float], higher_is_better: bool = True) -> dict[str, float]:
    """How a metric spreads over clients: weighted and plain mean, deviation, worst client, bottom decile.

    The bottom decile is the max(1, floor(N / 10))-th worst client. Values that are undefined are left out; of none
    everything is NaN.

    >>> spread([0.5, 1.0, math.nan], [3, 1, 5])
    {'weighted': 0.625, 'mean': 0.75, 'std': 0.25, 'worst': 0.5, 'bottom_decile': 0.5}
    """
    known = [pair for pair in zip(values, weights, strict=True) if is_defined(*pair)]
    if not known:
        return dict.fromkeys(("weighted", "mean", "std", "worst", "bottom_decile"), math.nan)
    numbers, weight = (np.array(column, float) for column in zip(*known, strict=True))
    worst_first = np.sort(numbers) if higher_is_better else np.sort(numbers)[::-1]
    return {
        "weighted": float(np.average(numbers, weights=weight)),
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "worst": float(worst_first[0]),
        "bottom_decile": float(worst_first[max(1, len(numbers) // 10) - 1]),
    }


def average(scores: ClientScores, mean: str = "weighted") -> float:
    """The mean over clients, `weighted` by samples or plain (`mean`); NaN where nothing is defined.

    >>> scores = {0: (0.5, 3), 1: (1.0, 1), 2: (math.nan, 7)}
    >>> average(scores), average(scores, "mean"), average({2: (math.nan, 7)})
    (0.625, 0.75, nan)
    """
    known = list(leave_out_undefined(scores).values())
    if not known:
        return math.nan
    values, samples = (np.array(column, float) for column in zip(*known, strict=True))
    return float(np.average(values, weights=samples if mean == "weighted" else None))


def is_better(a: float, b: float, higher_is_better: bool) -> bool:
    """Whether score a beats score b; a finite number beats one that is not."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.isfinite(a) and not math.isfinite(b)
    return a > b if higher_is_better else a < b


def group_scores(rows: Iterable[Row]) -> dict[tuple[str, str], dict[int, dict[int, tuple[float, int]]]]:
    """The scores by cohort and point, then by round, then by client; the rows are of one split and one metric."""
    groups: dict[tuple[str, str], dict[int, dict[int, tuple[float, int]]]] = {}
    for round, client, cohort, point, _, _, value, samples in rows:
        groups.setdefault((cohort, point), {}).setdefault(round, {})[client] = (value, samples)
    return groups


def headline(
    tests: Mapping[int, ClientScores], selected: int, higher: bool, beats: Callable[[ClientScores, ClientScores], bool]
) -> dict[str, Any]:
    """The blocks `selected`, `last` and `best` of one cohort, from its test scores by round.

    `best` is the best round by test score, which papers often report and which is optimistic: it is labelled as such
    everywhere; of scores that are all undefined it is the last. `beats` compares the scores of two rounds.
    """
    if not tests:
        return {}
    last, everybody = max(tests), set[int]().union(*tests.values())
    best, *later = [round for round in sorted(tests) if leave_out_undefined(tests[round])] or [last]
    for round in later:
        best = round if beats(tests[round], tests[best]) else best
    chosen = {"selected": selected if selected in tests else last, "last": last, "best": best}
    return {name: describe_round(tests[at], len(everybody), higher) | {"round": at + 1} for name, at in chosen.items()}


def describe_round(scores: ClientScores, clients: int, higher: bool) -> dict[str, Any]:
    """The spread over the clients of one round, and how many of them there are: `scored` have a value that counts and
    `undefined` one that does not, of all `clients` that were scored in any round."""
    known = leave_out_undefined(scores)
    values, samples = [value for value, _ in known.values()], [count for _, count in known.values()]
    counts = {"scored": len(known), "undefined": len(scores) - len(known), "clients": clients}
    return spread(values, samples, higher) | counts


def write_summary(summary: Mapping[str, Any]) -> str:
    """A summary as JSON with a checksum; what is not finite is null."""
    return json.dumps(add_checksum(finite_or_null(summary)), indent=2)


def read_summary(text: str) -> dict[str, Any]:
    """A summary from its JSON, or a `ValueError`; numbers over clients that are null are NaN again.

    >>> read_summary(write_summary({"auc": {"selected": {"weighted": math.nan, "round": 1}}, "options": {"k": None}}))
    {'auc': {'selected': {'weighted': nan, 'round': 1}}, 'options': {'k': None}}
    """
    restored: dict[str, Any] = _restore(take_checksum(json.loads(text)))
    return restored


def _restore(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    over_clients = "weighted" in value
    return {k: math.nan if over_clients and part is None else _restore(part) for k, part in value.items()}
