"""Constants beside methods: what knows the training targets and nothing else, a most frequent class or a mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.tables import Cell, score_cell
from .statistics import interval

if TYPE_CHECKING:
    from .leaderboard import Comparison

TITLES = {"own": "constant: each client's own", "shared": "constant: one for all"}
"""How tables call constants."""


def score_constants(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What constants score under a method's seeds, averaged over these, by kind; empty where it is not known."""
    if not summaries or any("constants" not in summary for summary in summaries):
        return {}
    names = ("weighted", "mean", "std", "bottom_decile", "worst")
    return {
        kind: {name: interval([summary["constants"][kind][name] for summary in summaries]).mean for name in names}
        for kind in summaries[0]["constants"]
    }


def beats_constants(summaries: Sequence[Mapping[str, Any]], score: float) -> bool | None:
    """Whether a method's score is better than those of all constants; None where one is not known."""
    constants = [scores[summaries[0]["headline"]] for scores in score_constants(summaries).values()]
    known = [constant for constant in constants if not math.isnan(constant)]
    if not known or math.isnan(score):
        return None
    return score < min(known) if summaries[0]["direction"] == "lower" else score > max(known)


def constant_rows(comparison: Comparison) -> tuple[tuple[Cell, ...], ...]:
    """Rows of the table of scores for constants, under the seeds of the first method."""
    metric, headline = comparison.protocol["metric"], comparison.protocol["headline"]
    method = comparison.rows[0].method
    constants = score_constants([run["summary"] for run in comparison.runs if run["method"] == method])
    beside = "mean" if headline == "weighted" else "weighted"
    return tuple(
        (
            Cell(TITLES[kind], TITLES[kind]),
            score_cell(scores[headline], metric),
            Cell("", math.nan),
            Cell("", math.nan),
            *(score_cell(scores[name], metric) for name in (beside, "bottom_decile", "worst", "std")),
        )
        for kind, scores in constants.items()
    )
