"""Constants beside methods: what knows the training targets and nothing else, a most frequent class or a mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.tables import Cell, score_cell
from ..runs.constants import TITLES
from .statistics import Interval, interval

if TYPE_CHECKING:
    from .leaderboard import Comparison


def score_constants(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Interval]]:
    """What constants score over a method's seeds, by kind; empty where it is not known."""
    if not summaries or any("constants" not in summary for summary in summaries):
        return {}
    names = ("weighted", "mean", "std", "bottom_decile", "worst")
    return {
        kind: {name: interval([summary["constants"][kind][name] for summary in summaries]) for name in names}
        for kind in summaries[0]["constants"]
    }


def beats_constants(summaries: Sequence[Mapping[str, Any]], score: float) -> bool | None:
    """Whether a method's score is better than those of all constants; None where one is not known."""
    constants = [scores[summaries[0]["headline"]].mean for scores in score_constants(summaries).values()]
    known = [constant for constant in constants if not math.isnan(constant)]
    if not known or math.isnan(score):
        return None
    return score < min(known) if summaries[0]["direction"] == "lower" else score > max(known)


def constant_rows(comparison: Comparison) -> tuple[tuple[Cell, ...], ...]:
    """Rows of the table of scores for constants, over the seeds of the first method; they are alike in all rounds."""
    metric, headline = comparison.protocol["metric"], comparison.protocol["headline"]
    method = comparison.rows[0].method
    constants = score_constants([run["summary"] for run in comparison.runs if run["method"] == method])
    beside = "mean" if headline == "weighted" else "weighted"
    rows = []
    for kind, scores in constants.items():
        mean, half = scores[headline]
        selected, spread = score_cell(mean, metric, half), (beside, "bottom_decile", "worst", "std")
        later = selected._replace(short=score_cell(mean, metric).text)
        cells = [score_cell(scores[name].mean, metric) for name in spread]
        rows.append((Cell(TITLES[kind], TITLES[kind]), selected, later, later, *cells))
    return tuple(rows)
