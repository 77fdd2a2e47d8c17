"""Whether a result is the committed one: to the bit, where numerics and machine are the same, or within an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..comparison.statistics import interval

TO_THE_BIT, WITHIN, DIFFERENT = "to the bit", "within the interval", "different"


@dataclass(frozen=True)
class Check:
    """How a result compares with the committed one: `kind`, whether it was computed alike, and what differs."""

    kind: str
    is_same_machine: bool
    lines: tuple[str, ...] = ()


def check_result(fresh: Mapping[str, Any], committed: Mapping[str, Any]) -> Check:
    """Compare two results of a claim, score by score.

    They are equal to the bit, or every method's mean lies within the committed 95 % interval over seeds, or something
    differs. Where machine and `__numerics__` are the same, anything but equality to the bit is different.
    """
    alike = [name for name in ("numerics", "machine") if fresh.get(name) != committed.get(name)]
    if fresh.get("definition") != committed.get("definition"):
        return Check(
            DIFFERENT, not alike, ("the claim's file has changed since its result was committed; run it anew",)
        )
    before, now = dict(read_scores(committed)), dict(read_scores(fresh))
    unequal = [key for key in before | now if not same(before.get(key, []), now.get(key, []))]
    if not unequal:
        return Check(TO_THE_BIT, not alike)
    lines = [line for key in unequal if (line := find_difference(key, before.get(key, []), now.get(key, [])))]
    if not alike:
        lines = lines or [f"{describe(key)}: other bits, though numerics and machine are the same" for key in unequal]
    return Check(DIFFERENT if lines else WITHIN, not alike, tuple(lines))


def read_scores(result: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], list[float]]]:
    """The scores of a result, by case and method, in the order of the seeds."""
    for case in result["cases"]:
        for method in case["methods"]:
            scores = [run["score"] for run in method["runs"]]
            yield (case["case"], method["method"]), [math.nan if score is None else score for score in scores]


def same(a: list[float], b: list[float]) -> bool:
    """Whether two lists of scores are equal; a run without a score equals another without one."""
    return len(a) == len(b) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


def find_difference(key: tuple[str, str], before: list[float], now: list[float]) -> str:
    """A sentence where the mean lies outside of the committed interval; nothing where it lies within."""
    (mean, half), (new, _) = interval(before), interval(now)
    if math.isnan(new) != math.isnan(mean):
        return f"{describe(key)}: {new:.4f}, committed {mean:.4f}"
    if math.isnan(half) or abs(new - mean) > half:
        return f"{describe(key)}: {new:.4f}, committed {mean:.4f} ± {half:.4f}"
    return ""


def describe(key: tuple[str, str]) -> str:
    """A case and a method in words."""
    case, method = key
    return f"{method} ({case})" if case else method
