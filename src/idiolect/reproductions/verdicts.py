"""The rules by which a claim is judged: pure functions of the scores, seed by seed.

A claim "A is higher than every B" is judged by the differences A - B, paired by seed, with 95 % Student intervals:

- it *holds* where every interval lies above zero. All of them have to, so no correction for their number is needed;
- it is *contradicted* where for some B the paired t-test, corrected by Holm's rule for the number of B, finds A lower
  at 5 %. With one B that is an interval below zero;
- else there is *no difference* that these seeds can show, and the intervals say how large a one they exclude.

"A is lower" is the same with the signs turned. "A equals every B within d" holds where every interval lies within
[-d, d], is contradicted where one lies outside of it altogether, and is *undecided* else. A seed under which one of the
two has no score is left out of their pair; with fewer than two pairs everything is undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..comparison.statistics import CONFIDENCE, Paired, compare_pairs, holm

HOLDS, NO_DIFFERENCE, CONTRADICTED = "holds", "no difference", "contradicted"
UNDECIDED, NOT_RUNNABLE = "undecided", "not runnable here"
Scores = Sequence[float]


@dataclass(frozen=True)
class Difference:
    """How the claimed side differs from one other, over seeds; `pairs` have both scores."""

    other: str
    paired: Paired
    p_holm: float
    pairs: int


@dataclass(frozen=True)
class Verdict:
    """What came out: the verdict, the differences it rests on, and what they say in words."""

    verdict: str
    differences: tuple[Difference, ...]
    words: str


def judge(relation: str, claimed: Scores, others: Mapping[str, Scores], within: float = 0.0) -> Verdict:
    """Judge that `claimed` is `higher`, `lower` or `equal` (`within` so much), compared with every one of `others`.

    Scores stand in the order of the seeds; NaN is a run without a score.

    >>> judge("higher", [0.9, 0.8, 0.9], {"fedavg": [0.7, 0.6, 0.9]}).verdict
    'no difference'
    >>> judge("higher", [0.9, 0.8, 0.9], {"fedavg": [0.7, 0.6, 0.69]}).verdict
    'holds'
    """
    paired = {name: compare_pairs(claimed, scores) for name, scores in others.items()}
    corrected = holm([test.p for test in paired.values()])
    differences = tuple(
        Difference(name, test, p, count_pairs(claimed, others[name]))
        for (name, test), p in zip(paired.items(), corrected, strict=True)
    )
    if unknown := [each.other for each in differences if math.isnan(each.paired.low)]:
        why = "fewer than two seeds have both scores" + (f": {', '.join(unknown)}" if len(others) > 1 else "")
        return Verdict(UNDECIDED, differences, why)
    if relation == "equal":
        return judge_equality(differences, within)
    return judge_order(differences, 1 if relation == "higher" else -1)


def count_pairs(a: Scores, b: Scores) -> int:
    """How many seeds have both scores."""
    return sum(math.isfinite(x) and math.isfinite(y) for x, y in zip(a, b, strict=True))


def judge_order(differences: Sequence[Difference], sign: int) -> Verdict:
    """Whether all differences have a sign."""
    right = [each for each in differences if find_low(each, sign) > 0]
    wrong = [each for each in differences if each.paired.difference * sign < 0 and each.p_holm < 1 - CONFIDENCE]
    open_ones = [each for each in differences if each not in right and each not in wrong]
    total = len(differences)
    if len(right) == total:
        return Verdict(
            HOLDS, tuple(differences), f"above {total} of {total}" if sign > 0 else f"below {total} of {total}"
        )
    side, other_side = ("above", "below") if sign > 0 else ("below", "above")
    words = [f"{side} {len(right)} of {total}"] if right else []
    words += [f"{other_side} " + ", ".join(each.other for each in wrong)] if wrong else []
    words += [f"no difference to {', '.join(each.other for each in open_ones)}"] if open_ones else []
    return Verdict(CONTRADICTED if wrong else NO_DIFFERENCE, tuple(differences), "; ".join(words))


def find_low(difference: Difference, sign: int) -> float:
    """The end of the interval that is least favourable to a claim of this sign."""
    return difference.paired.low if sign > 0 else -difference.paired.high


def judge_equality(differences: Sequence[Difference], within: float) -> Verdict:
    """Whether all differences are within a margin."""
    outside = [each.other for each in differences if each.paired.low > within or each.paired.high < -within]
    if outside:
        return Verdict(CONTRADICTED, tuple(differences), f"apart by more than the margin: {', '.join(outside)}")
    wide = [each.other for each in differences if each.paired.low < -within or each.paired.high > within]
    if wide:
        return Verdict(UNDECIDED, tuple(differences), f"the interval is wider than the margin: {', '.join(wide)}")
    return Verdict(HOLDS, tuple(differences), f"within the margin: {len(differences)} of {len(differences)}")
