"""How methods rank over several data sets: mean places, Friedman's test, Nemenyi's critical difference, a diagram."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from html import escape

from ..core.names import visible

LEVEL = 0.05
Scores = Mapping[str, float]
"""The score of every method on one data set, higher is better; NaN where there is none."""


def rank_all(values: Scores) -> dict[str, float]:
    """The place of every value, 1 for the highest; equal ones share the mean of their places, and one that is not a
    number is behind all others.

    >>> rank_all({"a": 0.9, "b": 0.7, "c": 0.9, "d": math.nan})
    {'a': 1.5, 'b': 3.0, 'c': 1.5, 'd': 4.0}
    """
    known = {name: -math.inf if math.isnan(value) else value for name, value in values.items()}
    higher = {name: sum(other > value for other in known.values()) for name, value in known.items()}
    equal = {name: sum(other == value for other in known.values()) for name, value in known.items()}
    return {name: higher[name] + (1 + equal[name]) / 2 for name in known}


def common_names(tables: Sequence[Scores]) -> list[str]:
    """The methods that are in every table, in the order of the first."""
    return [name for name in tables[0] if all(name in table for table in tables)] if tables else []


def mean_ranks(tables: Sequence[Scores]) -> dict[str, float]:
    """The mean place of every method that is in every table, among these methods, best first.

    >>> mean_ranks([{"a": 0.9, "b": 0.7, "c": 0.1}, {"b": 0.3, "a": 0.2}])
    {'a': 1.5, 'b': 1.5}
    """
    names = common_names(tables)
    places = [rank_all({name: table[name] for name in names}) for table in tables]
    means = {name: sum(of_one[name] for of_one in places) / len(places) for name in names}
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def critical_difference(methods: int, tables: int) -> float:
    """How far mean ranks of two methods must lie apart for a difference at 5 %, by Nemenyi's test.

    For 5 methods on 10 data sets q(0.05) = 2.728, so that it is 2.728 sqrt(5 * 6 / (6 * 10)) = 1.929 (Demšar, 2006).

    >>> round(critical_difference(5, 10), 3)
    1.929
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tables))


def friedman(tables: Sequence[Scores]) -> float:
    """The p-value of Friedman's test that all methods are alike; NaN with fewer than two data sets or three methods."""
    names = common_names(tables)
    if len(tables) < 2 or len(names) < 3:
        return math.nan
    from scipy.stats import friedmanchisquare

    return float(friedmanchisquare(*([table[name] for table in tables] for name in names)).pvalue)


def draw_ranks(
    ranks: Mapping[str, float], apart: float, references: Collection[str] = (), nothing: str = "Nothing has run yet."
) -> str:
    """A critical-difference diagram as SVG: the mean rank of each method on one axis, best above, and a bar as long as
    the critical difference. Written by hand so that the same results give the same bytes; it needs no LaTeX fonts."""
    height, left, right = 60 + 16 * len(ranks), 190.0, 700.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="740" height="{height}" fill="#fff"/>',
    ]
    if not ranks:
        return "\n".join([*lines, f'<text x="20" y="35">{nothing}</text>', "</svg>", ""])
    last = max(len(ranks), 2)

    def across(rank: float) -> float:
        return left + (rank - 1) / (last - 1) * (right - left)

    step = 10 if last > 10 else 1
    ticks = sorted({1, *range(step, last, step), last})
    for tick in ticks:
        x = across(tick)
        lines.append(f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{height - 10}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="24" text-anchor="middle" fill="#555">{tick}</text>')
    if math.isfinite(apart):
        end = min(across(min(ranks.values()) + apart), right)
        start = across(min(ranks.values()))
        lines.append(f'<rect x="{start:.1f}" y="32" width="{end - start:.1f}" height="{height - 44}" fill="#eef3fa"/>')
        lines.append(f'<text x="{start + 4:.1f}" y="{height - 2}" fill="#555">critical difference {apart:.1f}</text>')
    for at, (name, rank) in enumerate(ranks.items()):
        y = 46 + 16 * at
        colour = "#b5482a" if name in references else "#26527d"
        lines.append(f'<text x="{left - 10:.0f}" y="{y + 4}" text-anchor="end">{escape(visible(name))}</text>')
        lines.append(f'<circle cx="{across(rank):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return "\n".join([*lines, "</svg>", ""])
