"""What a comparison says in one sentence: whether personalizing beat both one model for all and no federation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..core.tables import formatter, unit
from .leaderboard import Comparison
from .statistics import Paired, compare_pairs, holm, interval

REFERENCES = ("fedavg", "local")
SIGNIFICANT = 0.05


def conclude(comparison: Comparison) -> str:
    """The sentence for a comparison, from the selected scores of its methods by seed."""
    scores = {row.method: row.scores for row in comparison.rows}
    return conclude_scores(scores, comparison.protocol["metric"], comparison.protocol["direction"] == "lower")


def conclude_scores(scores: Mapping[str, Sequence[float]], metric: str = "accuracy", lower: bool = False) -> str:
    """How the other methods did beside FedAvg and local training.

    A method counts as better only if it is better than each of the two, so its p-value is the larger one of two
    paired tests; over all methods they are corrected by Holm's procedure. The interval is not corrected for the choice
    of the best method, and the sentence says so.
    """
    if absent := [name for name in REFERENCES if name not in scores]:
        return f"Nothing can be concluded: {' and '.join(absent)} did not take part or failed."
    others, sign = [method for method in scores if method not in REFERENCES], -1.0 if lower else 1.0
    means = {method: sign * interval(values).mean for method, values in scores.items()}
    tests = {method: [_differ(scores[method], scores[name], sign) for name in REFERENCES] for method in others}
    if not others or any(math.isnan(test.p) for pair in tests.values() for test in pair):
        return "Nothing can be concluded: it takes another method, and a score of each for at least two seeds."
    corrected = holm([max(test.p for test in pair) for pair in tests.values()])
    reliable = [
        method
        for method, p in zip(others, corrected, strict=True)
        if p < SIGNIFICANT and all(test.difference > 0 for test in tests[method])
    ]
    show = formatter(metric)
    reference, best = max(REFERENCES, key=means.__getitem__), max(others, key=means.__getitem__)
    difference, low, high, _ = tests[best][REFERENCES.index(reference)]
    if reliable:
        finding = f"{len(reliable)} of {len(others)} other methods did better than both (Holm-corrected p < 0.05)"
    elif difference > 0:
        finding = f"none of {len(others)} other methods did reliably better than both (Holm-corrected p >= 0.05)"
    else:
        finding = f"none of {len(others)} other methods did better than {reference}"
    known = " and ".join(f"{name} has {show(sign * means[name])} {unit(metric)}".rstrip() for name in REFERENCES)
    return (
        f"Over {len(scores[reference])} seeds, {known}; {finding}; the best of them, {best}, differs from {reference}"
        f" by {show(difference * sign, sign=True)}{' points' * bool(unit(metric))} (95 % interval"
        f" {show(min(low * sign, high * sign), sign=True)} to {show(max(low * sign, high * sign), sign=True)}, not"
        " corrected for choosing the best)."
    )


def _differ(a: Sequence[float], b: Sequence[float], sign: float) -> Paired:
    """By how much `a` is better than `b`."""
    return compare_pairs([sign * value for value in a], [sign * value for value in b])
