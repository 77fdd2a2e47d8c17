"""From the summaries of runs to a leaderboard: means and intervals over seeds, paired differences to a baseline,
costs, and the protocol under which all of them hold. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .statistics import Interval, Paired, holm, interval, paired

SCHEMA_VERSION = 1
MORE_STEPS = 1.005
"""From this multiple of FedAvg's local steps on, a method is marked; below it is round-off of batches."""


@dataclass(frozen=True)
class Standing:
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
    standings: tuple[Standing, ...]
    runs: tuple[Mapping[str, Any], ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __getitem__(self, method: str) -> Standing:
        """The standing of a method, by the expression that names it."""
        return next(each for each in self.standings if each.method == method)

    def __str__(self) -> str:
        from .tables import markdown

        return markdown(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, as written to comparison.json; what is not a number is null."""
        held = {
            "schema": SCHEMA_VERSION,
            "protocol": dict(self.protocol),
            "methods": [plain(each) for each in self.standings],
            "skipped": dict(self.skipped),
            "runs": list(self.runs),
        }
        cleaned: dict[str, Any] = _without_nan(held)
        return cleaned


def rank(
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]], baseline: str, budgets: Mapping[int, int]
) -> tuple[Standing, ...]:
    """The standings, best first, from summaries by method and seed; `budgets` are FedAvg's steps by seed."""
    seeds = list(runs[baseline])
    summaries = {method: [by_seed[seed] for seed in seeds] for method, by_seed in runs.items()}
    budget = sum(budgets[seed] for seed in seeds) / len(seeds)
    standings = {method: _standing(method, held, budget) for method, held in summaries.items()}
    against = standings[baseline].scores
    versus = {method: paired(each.scores, against) for method, each in standings.items() if method != baseline}
    corrected = dict(zip(versus, holm([each.p for each in versus.values()]), strict=True))
    lower = summaries[baseline][0]["direction"] == "lower"
    placed = [
        Standing(**{**vars(each), "versus": versus.get(method), "p_holm": corrected.get(method, math.nan)})
        for method, each in standings.items()
    ]
    return tuple(sorted(placed, key=lambda each: _place(each.selected.mean, lower)))


def _place(score: float, lower: bool) -> float:
    return math.inf if math.isnan(score) else score if lower else -score


def _standing(method: str, held: Sequence[Mapping[str, Any]], budget: float) -> Standing:
    blocks = [each[each["metric"]] for each in held]

    def over_seeds(block: str, name: str) -> list[float]:
        return [each[block][name] for each in blocks]

    def average(name: str) -> float:
        return sum(float(each[name]) for each in held) / len(held)

    def over_clients(name: str) -> float:
        return interval(over_seeds("selected", name)).mean

    return Standing(
        method=method,
        point=held[0]["point"],
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
        peak_memory_mb=max(float(each["peak_memory_mb"]) for each in held),
        refused=sum(int(each["refused"]) for each in held),
        unseen=interval([each["unseen"]["selected"]["weighted"] for each in held]) if "unseen" in held[0] else None,
    )


def plain(standing: Standing) -> dict[str, Any]:
    """A standing as nested plain values."""
    held = dict(vars(standing))
    nothing = Paired(math.nan, math.nan, math.nan, math.nan)
    held["versus"] = (standing.versus or nothing)._asdict()
    for name in ("selected", "last", "best"):
        held[name] = getattr(standing, name)._asdict()
    held["unseen"] = (standing.unseen or Interval(math.nan, math.nan))._asdict()
    return held | {"scores": list(standing.scores), "needs_more_steps": standing.needs_more_steps}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
