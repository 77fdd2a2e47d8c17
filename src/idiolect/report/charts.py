"""Line charts as plain numbers, which a template draws as SVG: no drawing library, so that a page can be made anew
while runs go on. The axis of values is what the files of figures use, too."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..core.names import visible

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 14, 12, 52
FENCE = 7.0
"""How many times as far from the median as the middle one a value may be before it counts as an outlier."""
SQUASHED = 3.0
"""An outlier is left out only where it would make the range so many times as long."""
START = 2.0
"""How much room the start of curves may take, in lengths of the range of the rest."""
LOGARITHMIC = 1000.0
"""From this ratio of the largest to the smallest value on, an axis of positive values is logarithmic."""
MANY_DOTS = 30
"""Longer lines have no dots."""
SHADES, DASHES = 10, ("", "7 4", "2 3", "9 3 2 3")
"""How many colours there are, and the dashes of lines beyond them."""


@dataclass(frozen=True)
class Line:
    """A curve, and if wanted the band around it; a value that is not a number is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Stroke:
    """A line as it is drawn: paths, dots, and where its values lie beyond the edge: above (1) or below (-1)."""

    name: str
    shade: int
    dash: str
    path: str
    band: str
    dots: list[tuple[float, float]]
    beyond: list[tuple[float, float, int]]


@dataclass(frozen=True)
class Chart:
    """Lines on common axes.

    Attributes:
        show: how a value is written.
        mark: a value at which a dotted line is drawn.
        per_line: whether positions differ from line to line, so that a reader asks for one point at a time.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    show: Callable[[float], str]
    mark: float = math.nan
    per_line: bool = False

    @cached_property
    def box(self) -> dict[str, float]:
        """Where the axes lie: what stands at the left has room beside its title, also in the large type of a phone."""
        longest = max((len(text) for _, text in self.y_ticks()), default=0)
        return {"left": max(LEFT, 30 + 10 * longest), "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}

    @cached_property
    def axis(self) -> ValueAxis:
        """The axis of the values."""
        return value_axis([part for line in self.lines for part in (line.y, line.low, line.high) if len(part)])

    @cached_property
    def across(self) -> tuple[float, float]:
        """The smallest and the largest position."""
        known = [x for line in self.lines for x in line.x if math.isfinite(x)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def left(self, x: float) -> float:
        """Where a position lies, from the left."""
        low, high = self.across
        start = self.box["left"]
        return round(start + 6 + (WIDTH - start - RIGHT - 12) * (x - low) / (high - low), 1)

    def top(self, y: float) -> float:
        """Where a value lies, from the top; also of one beyond the edge, but not far beyond."""
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(self.axis.share(y), -2.0), 3.0)), 1)

    def x_ticks(self) -> list[tuple[float, str]]:
        """Where marks stand below, and what they say."""
        ticks = nice_ticks(*self.across, 6, whole=not self.per_line)
        return [(self.left(tick), write_tick(tick)) for tick in ticks]

    def y_ticks(self) -> list[tuple[float, str]]:
        """Where marks stand at the left, and what they say."""
        low, high = self.axis.low, self.axis.high
        ticks = log_ticks(low, high) if self.axis.is_logarithmic else nice_ticks(low, high, 5)
        return [(self.top(tick), write_tick(tick)) for tick in ticks]

    def strokes(self) -> list[Stroke]:
        """The lines as they are drawn."""
        low, high = self.axis.low, self.axis.high
        longest = max((len(line.y) for line in self.lines), default=0)
        drawn = []
        for place, line in enumerate(self.lines):
            inside = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y) and low <= y <= high]
            outside = [(x, y) for x, y in zip(line.x, line.y, strict=True) if not (low <= y <= high or y != y)]
            edges = [(self.left(x), self.top(min(max(y, low), high)), 1 if y > high else -1) for x, y in outside]
            dash = DASHES[place // SHADES % len(DASHES)]
            dots = [(self.left(x), self.top(y)) for x, y in inside] if longest <= MANY_DOTS else []
            drawn.append(Stroke(line.name, place % SHADES, dash, self._path(line), self._band(line), dots, edges))
        return drawn

    @property
    def has_mark(self) -> bool:
        """Whether the mark lies where it can be seen."""
        return self.axis.low <= self.mark <= self.axis.high

    def describe(self) -> str:
        """The chart in words, for those who do not see it: where each line ends."""
        ends = []
        for line in self.lines:
            known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
            ends.append(f"{line.name} {self.show(known[-1][1])}" if known else f"{line.name} undefined")
        return visible(f"{self.title}: {self.y_label} over {self.x_label}. At the end: {'; '.join(ends)}.")

    @property
    def cut(self) -> list[str]:
        """The lines of which a part lies beyond the edge."""
        return [stroke.name for stroke in self.strokes() if stroke.beyond]

    @property
    def points(self) -> str:
        """What a reader may ask for: of every line its name and its points, each where it lies and what it is."""
        return json.dumps(
            [
                {
                    "name": visible(line.name),
                    "points": [
                        [self.left(x), self.top(y), write_tick(x), self.show(y)]
                        for x, y in zip(line.x, line.y, strict=True)
                        if not math.isnan(y)
                    ],
                }
                for line in self.lines
            ]
        )

    def _path(self, line: Line) -> str:
        """The points that are there, joined; a gap where one is missing."""
        parts, pen = [], "M"
        for x, y in zip(line.x, line.y, strict=True):
            if math.isnan(y):
                pen = "M"
                continue
            parts.append(f"{pen}{self.left(x):g} {self.top(y):g}")
            pen = "L"
        return "".join(parts)

    def _band(self, line: Line) -> str:
        edges = [
            (self.left(x), self.top(low), self.top(high))
            for x, low, high in zip(line.x, line.low, line.high, strict=False)
            if not math.isnan(low + high)
        ]
        if len(edges) < 2:
            return ""
        there = [f"{x:g} {high:g}" for x, _, high in edges]
        back = [f"{x:g} {low:g}" for x, low, _ in reversed(edges)]
        return f"M{'L'.join(there + back)}Z"


# -- axes -----------------------------------------------------------------------------------------------


class ValueAxis(NamedTuple):
    """An axis of values: the smallest and the largest that it shows, and a little room beyond them."""

    low: float
    high: float

    @property
    def is_logarithmic(self) -> bool:
        """Whether it is logarithmic."""
        return self.low > 0 and self.high / self.low > LOGARITHMIC

    @property
    def edges(self) -> tuple[float, float]:
        """The values at which it begins and ends.

        >>> ValueAxis(0.0, 1.0).edges, ValueAxis(2.0, 2.0).edges
        ((-0.05, 1.05), (1.9, 2.1))
        """
        low, high = self._ends()
        return (math.exp(low), math.exp(high)) if self.is_logarithmic else (low, high)

    def share(self, value: float) -> float:
        """How far a value lies from where it begins (0) to where it ends (1).

        >>> ValueAxis(0.0, 1.0).share(0.5), round(ValueAxis(1.0, 1e4).share(100.0), 6)
        (0.5, 0.5)
        """
        low, high = self._ends()
        if self.is_logarithmic:
            value = math.log(value) if value > 0 else -math.inf
        return (value - low) / (high - low)

    def _ends(self) -> tuple[float, float]:
        low, high = (math.log(self.low), math.log(self.high)) if self.is_logarithmic else (self.low, self.high)
        room = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
        return low - room, min(high + room, math.log(sys.float_info.max)) if self.is_logarithmic else high + room


def value_axis(curves: Sequence[Sequence[float]]) -> ValueAxis:
    """The axis on which curves, and the ends of their bands, are drawn on a page and in a file alike."""
    return ValueAxis(*readable_range(curves))


def readable_range(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From where to where an axis reaches so that most of what several curves show can be read.

    Outliers among their values after the first quarter are left out, by the distance from the median; what is left
    out, as the start of the curves, has room on either side, but not so much that the rest is squashed.

    >>> readable_range([[-9.0, 0.5, 0.75, 1.0], [0.25, 0.5, 0.75, 1.0]])
    (-0.5, 1.0)
    >>> low, high = readable_range([[3.0, 2.0, 1.0, 1.0], [3.0, 2.0, 1.5, 1.2], [3.0, 1e9, 1e13, float("nan")]])
    >>> low, high
    (1.0, 4.0)
    """
    settled = _finite(value for curve in curves for value in curve[len(curve) // 4 :])
    every = _finite(value for curve in curves for value in curve)
    if not len(every):
        return 0.0, 1.0
    settled = settled if len(settled) else every
    apart = np.abs(settled - np.median(settled))
    room = FENCE * np.median(apart)
    kept = settled[apart <= room] if room > 0 else settled
    if np.ptp(settled) <= SQUASHED * np.ptp(kept):
        kept = settled
    low, high = float(kept.min()), float(kept.max())
    spare = START * (high - low)
    if spare == 0:
        return float(every.min()), float(every.max())
    return max(float(every.min()), low - spare), min(float(every.max()), high + spare)


def nice_ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers between two, at most so many and one.

    >>> nice_ticks(0.0, 1.0, 5), nice_ticks(1, 8, 6, whole=True), nice_ticks(2.0, 2.0, 5)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [2.0, 4.0, 6.0, 8.0], [2.0])
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= raw * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two, about five.

    >>> log_ticks(0.5, 2000.0)
    [1.0, 10.0, 100.0, 1000.0]
    """
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**power for power in powers[:: max(1, -(-len(powers) // 6))]]


def write_tick(value: float) -> str:
    """A number at an axis.

    >>> write_tick(0.30000000000000004), write_tick(12000.0), write_tick(1e13)
    ('0.3', '12,000', '1e+13')
    """
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{round(value, 6):,.12g}" if abs(value) < 1000 else f"{value:,.0f}"


def _finite(values: Iterator[float]) -> np.ndarray:
    return np.array([value for value in values if math.isfinite(value)], float)
