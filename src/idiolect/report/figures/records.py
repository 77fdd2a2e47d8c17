"""What a run recorded about itself, and how it is drawn where no panel knows better: units against rounds, or a line
per client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...core.names import picture_text, slug
from ..study import Run, Study
from .picture import HEIGHT, INK, LONG, LONGEST, WIDTH, Picture, colour, draw_heatmap, label_rounds, make_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_LINES = 60
NAMES = {
    "lambda": ("Mixing ratio λ of every client", "λ, mean of its rounds", "1 follows its own update, 0 the average."),
    "lambda_newest": ("Newest mixing ratio λ of every client", "λ of the round", ""),
    "alpha": ("Share of the personal model", "α", "1 predicts with the personal model alone, 0 with the global one."),
    "own_accuracy": ("Accuracy that weighs a client's own head", "A", "1 keeps the own head, 0 takes the global one."),
    "global_share": ("Weight of the global model", "mean weight", "1 takes the global model, 0 keeps the own one."),
    "on": ("Share of weights that are on", "share", ""),
    "rate": ("Learning rate of every unit", "multiple of the run's", "Mean over clients."),
    "sent": ("Share of every unit that is sent", "share of coordinates", "Mean over clients."),
    "personal": ("Personal units", "personal", "1 after a round: clients keep their own values of the unit."),
    "factor_steps": ("Steps of the factor analysis", "steps", ""),
    "factor_converged": ("Factor analyses that converged", "converged", "1: it did; 0: it was stopped before."),
    "pi": ("Mixture weights", "weight", "Mean over clients."),
}  # fmt: skip
"""Titles, labels and how to read them, for records that need no panel of their own."""


@dataclass(frozen=True)
class Records:
    """What one run recorded; names of the form what/unit belong together."""

    study: Study
    run: Run

    @cached_property
    def names(self) -> list[str]:
        """The names, in the order of recording."""
        return list(self.run.records["metric"].unique(maintain_order=True))

    def units(self, what: str) -> list[str]:
        """The units of which something was recorded."""
        return [name.removeprefix(f"{what}/") for name in self.names if name.startswith(f"{what}/")]

    @cached_property
    def rounds(self) -> list[int]:
        """The rounds with records."""
        return sorted(self.run.records["round"].unique())

    def by_client(self, name: str) -> np.ndarray:
        """The values of one name, [clients, rounds]; NaN where there is none."""
        rows = self.run.records.filter(metric=name)
        clients = sorted(rows["client"].unique())
        values = np.full((len(clients), len(self.rounds)), np.nan)
        for round, client, value in rows.select("round", "client", "value").iter_rows():
            values[clients.index(client), self.rounds.index(round)] = value
        return values

    def by_unit(self, what: str) -> np.ndarray:
        """The mean over clients of what/unit, [units, rounds]."""
        means = self.run.records.group_by("metric", "round").agg(pl.col("value").mean())
        values = {(name, round): value for name, round, value in means.iter_rows()}
        return np.array([[values.get((f"{what}/{u}", r), np.nan) for r in self.rounds] for u in self.units(what)])

    def picture(
        self,
        name: str,
        title: str,
        caption: str,
        paint: Callable[[Figure], None],
        height: float = HEIGHT,
        width: float = WIDTH,
    ) -> Picture:
        """A picture of this run."""
        caption = f"{caption} Seed {self.run.seed}.".strip()
        file = f"{slug(self.run.method)}-{slug(name)}"
        return replace(make_picture(file, title, caption, paint, (width, height)), method=self.run.method)


def record_pictures(records: Records, names: Sequence[str]) -> list[Picture]:
    """Records as they are: a heat map of units, or lines of clients or of the server."""
    pictures = []
    for what in dict.fromkeys(name.partition("/")[0] for name in names):
        title, label, reading = NAMES.get(what, (what.replace("_", " ").capitalize(), what.replace("_", " "), ""))
        if records.units(what):
            pictures.append(unit_map(records, what, title, label, reading))
        else:
            pictures.append(client_lines(records, what, title, label, reading))
    return pictures


def unit_map(records: Records, what: str, title: str, label: str, reading: str) -> Picture:
    """Units against rounds."""
    units = records.units(what)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        values = records.by_unit(what)
        known = np.unique(values[np.isfinite(values)])
        low, high = sorted((0.0, float(known[0]) or 1.0)) if len(known) == 1 else (None, None)
        draw_heatmap(axes, values, label, units, records.rounds, low, high)
        label_units(axes)

    return records.picture(what, title, reading, paint, heatmap_height(units))


def label_units(axes: Axes) -> None:
    """What a heat map of units has at its sides."""
    axes.set_xlabel("round")
    axes.set_ylabel("unit")


def heatmap_height(units: Sequence[str]) -> float:
    """The height of a heat map of units."""
    return max(2.1, 1.3 + min(0.25 * len(units), 6))


def client_lines(records: Records, name: str, title: str, label: str, reading: str) -> Picture:
    """A line per client; of many clients the median and the middle half."""
    values = records.by_client(name)
    many = len(values) > MANY_LINES

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        if many:
            draw_band(axes, records.rounds, *np.nanpercentile(values, (25, 50, 75), axis=0))
        else:
            for line in values:
                axes.plot(records.rounds, line, color=colour(0), alpha=0.35 if len(values) > 1 else 1, linewidth=1)
            if len(values) > 1:
                axes.plot(records.rounds, np.nanmedian(values, axis=0), color=INK, linewidth=2)
        axes.set_ylabel(picture_text(label, LONGEST))
        label_rounds(axes)

    kind = "The median over clients and the middle half." if many else "A line per client; the bold one is the median."
    return records.picture(name, title, f"{kind if len(values) > 1 else ''} {reading}".strip(), paint)


def draw_band(
    axes: Axes,
    rounds: Sequence[int],
    low: np.ndarray,
    middle: np.ndarray,
    high: np.ndarray,
    place: int = 0,
    label: str = "",
) -> None:
    """A line and the band around it."""
    axes.fill_between(rounds, low, high, color=colour(place), alpha=0.2, linewidth=0)
    axes.plot(rounds, middle, color=colour(place), label=picture_text(label, LONG))
