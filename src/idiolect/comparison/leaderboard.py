"""From the summaries of runs to a leaderboard: means and intervals over seeds, paired differences to a baseline,
costs, and the protocol under which all of them hold. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .statistics import Interval, Paired, holm, interval, paired

SCHEMA_VERSION = 1
MORE_STEPS = 1.005
"""From this multiple of FedAvg's local steps on, a method is marked; below it is round-off of batches."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One method over all seeds. Scores are sample-weighted over clients; `selected` is the headline.

    Attributes:
        scores: the selected score of every seed, in the order of the protocol's seeds.
        mean, std, bottom_decile, worst: over clients at the selected round, averaged over seeds.
        unseen: the score of clients that never trained, where there are any.
        steps, relative_steps: local steps per run, and as a multiple of FedAvg's under the same settings.
        versus: the paired difference to the baseline; None for the baseline itself.
        p_holm: its p-value, corrected for the number of methods that are tested.
    """

    method: str
    point: str
    scores: tuple[float, ...]
    selected: Interval
    last: Interval
    best: Interval
    mean: float
    std: float
    bottom_decile: float
    worst: float
    mb_up: float
    mb_down: float
    mb_eval: float
    steps: float
    relative_steps: float
    seconds: float
    peak_memory_mb: float
    refused: int
    unseen: Interval | None = None
    versus: Paired | None = None
    p_holm: float = math.nan

    @property
    def needs_more_steps(self) -> bool:
        """Whether it takes more local steps than FedAvg, so that the budgets are not equal."""
        return self.relative_steps >= MORE_STEPS


@dataclass(frozen=True)
class Comparison:
    """Methods compared under one protocol, best first."""

    protocol: Mapping[str, Any]
    rows: tuple[LeaderboardRow, ...]
    runs: tuple[Mapping[str, Any], ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __getitem__(self, method: str) -> LeaderboardRow:
        """The row of a method, by the expression that names it."""
        return next(row for row in self.rows if row.method == method)

    def __str__(self) -> str:
        from .tables import markdown

        return markdown(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, as written to comparison.json; what is not a number is null."""
        values = {
            "schema": SCHEMA_VERSION,
            "protocol": dict(self.protocol),
            "methods": [plain(row) for row in self.rows],
            "skipped": dict(self.skipped),
            "runs": list(self.runs),
        }
        cleaned: dict[str, Any] = _without_nan(values)
        return cleaned


def rank(
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]], baseline: str, fedavg_steps: Mapping[int, int]
) -> tuple[LeaderboardRow, ...]:
    """The rows, best first, from summaries by method and seed; `fedavg_steps` are FedAvg's local steps by seed."""
    seeds = list(runs[baseline])
    summaries = {method: [by_seed[seed] for seed in seeds] for method, by_seed in runs.items()}
    budget = sum(fedavg_steps[seed] for seed in seeds) / len(seeds)
    rows = {method: _make_row(method, of_method, budget) for method, of_method in summaries.items()}
    against = rows[baseline].scores
    versus = {method: paired(row.scores, against) for method, row in rows.items() if method != baseline}
    corrected = dict(zip(versus, holm([test.p for test in versus.values()]), strict=True))
    lower = summaries[baseline][0]["direction"] == "lower"
    tested = [
        replace(row, versus=versus.get(method), p_holm=corrected.get(method, math.nan)) for method, row in rows.items()
    ]
    return tuple(sorted(tested, key=lambda row: _place(row.selected.mean, lower)))


def _place(score: float, lower: bool) -> float:
    return math.inf if math.isnan(score) else score if lower else -score


def _make_row(method: str, summaries: Sequence[Mapping[str, Any]], budget: float) -> LeaderboardRow:
    """The row of one method from its summaries, one per seed, before the tests against the baseline."""
    blocks = [summary[summary["metric"]] for summary in summaries]
    unseen = [summary["unseen"]["selected"]["weighted"] for summary in summaries if "unseen" in summary]

    def over_seeds(block: str, name: str) -> list[float]:
        return [scores[block][name] for scores in blocks]

    def average(name: str) -> float:
        return sum(float(summary[name]) for summary in summaries) / len(summaries)

    def over_clients(name: str) -> float:
        return interval(over_seeds("selected", name)).mean

    return LeaderboardRow(
        method=method,
        point=summaries[0]["point"],
        scores=tuple(over_seeds("selected", "weighted")),
        selected=interval(over_seeds("selected", "weighted")),
        last=interval(over_seeds("last", "weighted")),
        best=interval(over_seeds("best", "weighted")),
        mean=over_clients("mean"),
        std=over_clients("std"),
        bottom_decile=over_clients("bottom_decile"),
        worst=over_clients("worst"),
        mb_up=average("bytes_up") / 1e6,
        mb_down=average("bytes_down") / 1e6,
        mb_eval=average("bytes_eval") / 1e6,
        steps=average("steps"),
        relative_steps=average("steps") / budget if budget else math.nan,
        seconds=average("seconds"),
        peak_memory_mb=max(float(summary["peak_memory_mb"]) for summary in summaries),
        refused=sum(int(summary["refused"]) for summary in summaries),
        unseen=interval(unseen) if unseen else None,
    )


def plain(row: LeaderboardRow) -> dict[str, Any]:
    """A row as nested plain values."""
    untested, unscored = Paired(math.nan, math.nan, math.nan, math.nan), Interval(math.nan, math.nan)
    intervals = {name: getattr(row, name)._asdict() for name in ("selected", "last", "best")}
    return (
        vars(row)
        | intervals
        | {
            "versus": (row.versus or untested)._asdict(),
            "unseen": (row.unseen or unscored)._asdict(),
            "scores": list(row.scores),
            "needs_more_steps": row.needs_more_steps,
        }
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
