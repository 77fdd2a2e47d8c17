"""The grand table: how methods rank over federations, from committed results alone. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparison.ranks import rank_all
from ..comparison.statistics import compare_pairs, interval
from .claims import Claim
from .files import ClaimResult, define, read_result, result_path
from .reading import read_claims

REFERENCES = ("fedavg", "local", "finetune(fedavg)")
"""What every method is compared with."""


@dataclass(frozen=True)
class Entry:
    """One method on one federation: its scores seed by seed, higher is better, and what they cost.

    Attributes:
        unseen: the score of clients that never trained; NaN where there are none.
        below_local: the share of clients that local training serves better.
        gradients, megabytes, seconds: of a run, over FedAvg's.
    """

    scores: tuple[float, ...]
    unseen: float
    below_local: float
    gradients: float
    megabytes: float
    seconds: float

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return interval(self.scores).mean


@dataclass(frozen=True)
class Federation:
    """One federation of the table: its claim, and the methods that ran there."""

    claim: Claim
    entries: Mapping[str, Entry]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]
    minutes: float

    @property
    def ranks(self) -> dict[str, float]:
        """The place of every method, 1 for the best; equal scores share the mean of their places. A method without a
        score is behind all others."""
        return rank_all({name: each.mean for name, each in self.entries.items()})


# -- reading ----------------------------------------------------------------------------------------------


def read_federations(folder: Path) -> tuple[list[Federation], list[Claim]]:
    """The federations of the table with a committed result, and those without."""
    tables = [claim for claim in read_claims(folder).values() if claim.is_table]
    results = {claim.name: read_result(result_path(folder, claim.name)) for claim in tables}
    current = {name for name, found in results.items() if found is not None}
    done = [claim for claim in tables if claim.name in current and is_current(claim, results[claim.name])]
    return [make_federation(claim, results[claim.name] or {}) for claim in done], [c for c in tables if c not in done]


def is_current(claim: Claim, result: ClaimResult | None) -> bool:
    """Whether a result is of the claim as its file is now."""
    return result is not None and result["definition"] == define(claim)


def make_federation(claim: Claim, result: ClaimResult) -> Federation:
    """A federation from its result."""
    (case,) = result["cases"]
    sign = -1 if case["protocol"].get("direction") == "lower" else 1
    failed = {each["method"]: each["failed"] for each in case["methods"] if "failed" in each}
    by_name = {each["method"]: each for each in case["methods"] if each["method"] not in failed}
    base = by_name["fedavg"]
    entries = {name: make_entry(each, base, sign) for name, each in by_name.items()}
    return Federation(claim, entries, result.get("skipped", {}), failed, result["seconds"] / 60)


def make_entry(method: Mapping[str, Any], base: Mapping[str, Any], sign: int) -> Entry:
    """One method from its record; costs over those of `base`."""

    def relative(*names: str) -> float:
        own, other = (sum(mean_over_seeds(each, name) for name in names) for each in (method, base))
        return own / other if other else math.nan

    return Entry(
        scores=tuple(math.nan if run["score"] is None else sign * run["score"] for run in method["runs"]),
        unseen=sign * mean_over_seeds(method, "unseen"),
        below_local=mean_over_seeds(method, "below_local"),
        gradients=relative("gradients"),
        megabytes=relative("bytes_up", "bytes_down"),
        seconds=relative("seconds"),
    )


def mean_over_seeds(method: Mapping[str, Any], name: str) -> float:
    """The mean of a number over a method's runs; NaN where none has it."""
    return interval([run[name] for run in method["runs"] if run.get(name) is not None]).mean


def order(case: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The methods of a case by their mean score, best first."""
    sign = -1 if case["protocol"].get("direction") == "lower" else 1
    means = [(each["method"], mean_over_seeds(each, "score")) for each in case["methods"]]
    return sorted((pair for pair in means if not math.isnan(pair[1])), key=lambda pair: -sign * pair[1])


# -- over federations -------------------------------------------------------------------------------------


def means_of(federations: Sequence[Federation]) -> list[dict[str, float]]:
    """Every method's mean score, federation by federation."""
    return [{name: entry.mean for name, entry in each.entries.items()} for each in federations]


def wins(federations: Sequence[Federation], a: str, b: str) -> tuple[int, int]:
    """On how many federations `a` is above `b`, and below it, where the paired interval over seeds leaves out zero."""
    tests = [
        compare_pairs(each.entries[a].scores, each.entries[b].scores)
        for each in federations
        if a in each.entries and b in each.entries
    ]
    return sum(test.low > 0 for test in tests), sum(test.high < 0 for test in tests)


def below_both(federation: Federation) -> list[str]:
    """The methods whose mean is below local training's and fine-tuned FedAvg's."""
    bar = [federation.entries[name].mean for name in ("local", "finetune(fedavg)") if name in federation.entries]
    return [name for name, each in federation.entries.items() if bar and each.mean < min(bar)]
