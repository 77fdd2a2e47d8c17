"""What a comparison says in one sentence: whether personalizing beat both one model for all and no federation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..core.tables import Formatter, formatter, probability, unit
from .leaderboard import Comparison, LeaderboardRow
from .statistics import SIGNIFICANT, Paired, compare_pairs, holm, interval

REFERENCES = ("fedavg", "local")


def summarize(comparison: Comparison) -> str:
    """What came out, in a sentence or two, of any comparison and of the runs of one method, and how sure it is: beside
    FedAvg and local training if both took part, else beside the baseline; and whether it is better than constants."""
    rows = comparison.rows
    if any(row.beats_constants is not False for row in rows):
        return _summarize(comparison)
    return f"{_summarize(comparison)} {'No method' if len(rows) > 1 else 'It'} is better than predicting a constant."


def _summarize(comparison: Comparison) -> str:
    protocol, rows = comparison.protocol, comparison.rows
    metric, baseline, seeds = protocol["metric"], protocol["baseline"], len(protocol["seeds"])
    show, best = formatter(metric), rows[0]
    if math.isnan(best.selected.mean):
        return f"The test {metric} of {'every method' if len(rows) > 1 else best.method} is undefined."
    reached = f"a test {metric} of {_with_interval(best, metric, show)}"
    if len(rows) == 1:
        worst, mean = (f"{show(score)} {unit(metric)}".rstrip() for score in (best.worst, best.mean))
        spread = f"its clients have {worst} at worst and {mean} on average"
        doubt = "" if seeds > 1 else " One seed says nothing of chance."
        return f"{best.method} reaches {reached}; {spread}.{doubt}"
    others = [row.method for row in rows if row.method not in REFERENCES]
    if seeds > 1 and others and len(rows) == len(others) + len(REFERENCES):
        sentence = conclude(comparison)
        if not sentence.startswith("Nothing"):
            return sentence
    if best.versus is None:
        return f"No method has a better score than {baseline}, which reaches {reached}. {_doubt(rows, seeds)}".strip()
    ahead = f"{best.method} has the best score, {reached}"
    difference, low, high = _write_alike(metric, best.versus.difference, best.versus.low, best.versus.high)
    beside = f"{difference}{' points' * bool(unit(metric))} beside {baseline}"
    if seeds == 1:
        return f"{ahead}: {beside}. {_doubt(rows, seeds)}"
    finding = "is more than chance explains" if best.p_holm < SIGNIFICANT else "may be chance"
    return (
        f"Over {seeds} seeds, {ahead}: {beside} (95 % interval {low} to {high}), which {finding}"
        f" (Holm-corrected p {_compare(best.p_holm)})."
    )


def _with_interval(row: LeaderboardRow, metric: str, show: Formatter) -> str:
    mean, half = row.selected
    if math.isnan(half):
        return f"{show(mean)} {unit(metric)}".rstrip()
    low, high = (max(mean - half, 0.0), min(mean + half, 1.0)) if unit(metric) else (mean - half, mean + half)
    score, least, most = _write_alike(metric, mean, low, high, sign="")
    return f"{score} {unit(metric)}".rstrip() + f" (95 % interval {least} to {most})"


def _write_alike(metric: str, *values: float, sign: str = "+") -> list[str]:
    """Numbers with as many digits after the point as accuracies have, or as the largest needs for three digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if unit(metric) or not 1e-6 < largest < 1e6:
        return [formatter(metric)(value, sign=bool(sign)) for value in values]
    digits = max(0, 2 - math.floor(math.log10(largest)))
    return ["–" if math.isnan(value) else f"{value:{sign},.{digits}f}" for value in values]


def _doubt(rows: Sequence[LeaderboardRow], seeds: int) -> str:
    """How sure it is that none is better."""
    if seeds == 1:
        return "One seed says nothing of chance: compare over several."
    worse = sum(row.p_holm < SIGNIFICANT for row in rows)
    return f"{worse} of {len(rows) - 1} other methods differ from it by more than chance (Holm-corrected p < 0.05)."


def _compare(p: float) -> str:
    return "is undefined" if math.isnan(p) else text if (text := probability(p)).startswith("<") else f"= {text}"


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
    several = len(others) > 1
    did = f"{len(reliable) or 'none'} of {len(others)} other methods did" if several else f"{best} did"
    never, it = ("", f"the best of them, {best},") if several else (" not do", "it")
    chosen = ", not corrected for choosing the best" * several
    if reliable:
        finding = f"{did} better than both (Holm-corrected p < 0.05)"
    elif difference > 0:
        finding = f"{did}{never} reliably better than both (Holm-corrected p >= 0.05)"
    else:
        finding = f"{did}{never} better than {reference}"
    gap, least, most = _write_alike(metric, difference * sign, *sorted((low * sign, high * sign)))
    known = " and ".join(f"{name} has {show(sign * means[name])} {unit(metric)}".rstrip() for name in REFERENCES)
    return (
        f"Over {len(scores[reference])} seeds, {known}; {finding}; {it} differs from {reference}"
        f" by {gap}{' points' * bool(unit(metric))} (95 % interval {least} to {most}{chosen})."
    )


def _differ(a: Sequence[float], b: Sequence[float], sign: float) -> Paired:
    """By how much `a` is better than `b`."""
    return compare_pairs([sign * value for value in a], [sign * value for value in b])
