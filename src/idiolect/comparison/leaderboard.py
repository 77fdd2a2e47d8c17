"""From the summaries of runs to a leaderboard: means and intervals over seeds, paired differences to a baseline,
costs, and the protocol under which all of them hold. Nothing is run here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.files import finite_or_null
from ..core.tables import write_html
from .constants import beats_constants
from .statistics import Interval, Paired, compare_pairs, holm, interval

SCHEMA_VERSION = 1
MORE_GRADIENTS = 1.005
"""From this multiple of FedAvg's gradients on, a method is marked; below it is round-off of batches."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One method over all seeds; `selected` is the headline. Scores are means over clients, weighted by samples or
    plain, as the protocol's `headline` says.

    Attributes:
        scores: the selected score of every seed, in the order of the protocol's seeds.
        weighted, mean, std, bottom_decile, worst: over clients at the selected round, averaged over seeds.
        selection: how the round was selected, in words.
        clients, undefined, missing: over all seeds, how many clients there are to score, and of how many the score at
            the selected round is undefined or was not sent; these are left out of all numbers.
        refusals: uploads that were left out, by what was wrong with them.
        shared: the score of the shared model itself, where it is recorded and there is one.
        unseen: the score of clients that never trained, where there are any.
        others: the scores of the metrics beside the headline at the selected round, by name.
        beats_constants: whether the score is better than those of constants; None where they are not known.
        steps, gradients, passes: per run, local steps, gradients of the model and forward passes beside them.
        relative_gradients: the gradients as a multiple of FedAvg's under the same settings.
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
    weighted: float
    selection: str
    clients: int
    undefined: int
    missing: int
    mb_up: float
    mb_down: float
    mb_eval: float
    steps: float
    gradients: float
    passes: float
    relative_gradients: float
    seconds: float
    peak_memory_mb: float
    refusals: Mapping[str, int]
    shared: Interval | None = None
    unseen: Interval | None = None
    others: Mapping[str, Interval] = field(default_factory=dict)
    beats_constants: bool | None = None
    versus: Paired | None = None
    p_holm: float = math.nan

    @property
    def refused(self) -> int:
        """How many uploads were left out."""
        return sum(self.refusals.values())

    @property
    def needs_more_gradients(self) -> bool:
        """Whether it takes more gradients than FedAvg, so that the budgets are not equal."""
        return self.relative_gradients >= MORE_GRADIENTS


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods compared under one protocol, best first; `skipped` could not run here, `failed` learned nothing."""

    protocol: Mapping[str, Any]
    rows: tuple[LeaderboardRow, ...]
    runs: tuple[Mapping[str, Any], ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __getitem__(self, method: str) -> LeaderboardRow:
        """The row of a method, by the expression that names it."""
        return next(row for row in self.rows if row.method == method)

    def __repr__(self) -> str:
        """Who is ahead, of how many, over how many seeds."""
        seeds, methods = len(self.protocol["seeds"]), len(self.rows)
        best = f", {self.rows[0].method} ahead" if self.rows else ""
        return f"Comparison({methods} methods on {self.protocol['data']}, {seeds} seed{'s' * (seeds != 1)}{best})"

    def __str__(self) -> str:
        from .tables import markdown

        return markdown(self)

    def _repr_html_(self) -> str:
        """The leaderboard in a notebook: what it says, its tables, protocol and footnotes."""
        from .conclusion import conclude
        from .tables import footnotes, leaderboard_tables, protocol_lines

        tables = [table.shorten() for table in leaderboard_tables(self)] if self.rows else []
        return write_html(tables, [conclude(self), *protocol_lines(self), *footnotes(self)])

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, as written to comparison.json; what is not a number is null."""
        values: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "protocol": dict(self.protocol),
            "methods": [plain(row) for row in self.rows],
            "skipped": dict(self.skipped),
            "failed": dict(self.failed),
            "runs": list(self.runs),
        }
        return dict(finite_or_null(values))


def rank(
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]], baseline: str, fedavg_gradients: Mapping[int, int]
) -> tuple[LeaderboardRow, ...]:
    """The rows, best first, from summaries by method and seed; `fedavg_gradients` are FedAvg's by seed."""
    seeds = list(runs[baseline])
    summaries = {method: [by_seed[seed] for seed in seeds] for method, by_seed in runs.items()}
    budget = sum(fedavg_gradients[seed] for seed in seeds) / len(seeds)
    rows = {method: _make_row(method, of_method, budget) for method, of_method in summaries.items()}
    against = rows[baseline].scores
    versus = {method: compare_pairs(row.scores, against) for method, row in rows.items() if method != baseline}
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
    blocks, headline = [summary[summary["metric"]] for summary in summaries], summaries[0]["headline"]

    def beside(block: str) -> Interval | None:
        scores = [summary[block]["selected"][headline] for summary in summaries if block in summary]
        return interval(scores) if scores else None

    def over_seeds(block: str, name: str) -> list[float]:
        return [scores[block][name] for scores in blocks]

    def average(name: str) -> float:
        return sum(float(summary[name]) for summary in summaries) / len(summaries)

    def over_clients(name: str) -> float:
        return interval(over_seeds("selected", name)).mean

    clients, undefined = (int(sum(over_seeds("selected", name))) for name in ("clients", "undefined"))
    return LeaderboardRow(
        method=method,
        point=summaries[0]["point"],
        scores=tuple(over_seeds("selected", headline)),
        selected=interval(over_seeds("selected", headline)),
        last=interval(over_seeds("last", headline)),
        best=interval(over_seeds("best", headline)),
        mean=over_clients("mean"),
        std=over_clients("std"),
        bottom_decile=over_clients("bottom_decile"),
        worst=over_clients("worst"),
        weighted=over_clients("weighted"),
        selection="; ".join(dict.fromkeys(summary["selection"] for summary in summaries)),
        clients=clients,
        undefined=undefined,
        missing=clients - undefined - int(sum(over_seeds("selected", "scored"))),
        mb_up=average("bytes_up") / 1e6,
        mb_down=average("bytes_down") / 1e6,
        mb_eval=average("bytes_eval") / 1e6,
        steps=average("steps"),
        gradients=average("gradients"),
        passes=average("passes"),
        relative_gradients=average("gradients") / budget if budget else math.nan,
        seconds=average("seconds"),
        peak_memory_mb=max(float(summary["peak_memory_mb"]) for summary in summaries),
        refusals=dict(sum((Counter(summary["refusals"]) for summary in summaries), Counter())),
        shared=beside("global"),
        unseen=beside("unseen"),
        others={
            name: interval([summary["others"][name][headline] for summary in summaries])
            for name in summaries[0].get("others", {})
            if all(name in summary.get("others", {}) for summary in summaries)
        },
        beats_constants=beats_constants(summaries, interval(over_seeds("selected", headline)).mean),
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
            "shared": (row.shared or unscored)._asdict(),
            "unseen": (row.unseen or unscored)._asdict(),
            "others": {name: score._asdict() for name, score in row.others.items()},
            "scores": list(row.scores),
            "refused": row.refused,
            "needs_more_gradients": row.needs_more_gradients,
        }
    )
