"""The leaderboard and the course of the runs as pictures: differences, wins, curves over rounds, bytes and seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...analysis import win_tie_loss
from ...core.names import picture_text, picture_texts
from ...core.tables import label
from ..charts import MANY_DOTS, readable_range, value_axis
from ..scores import AXES, common_target, mean_curve, paired_scores
from ..study import Study
from .picture import (
    HEIGHT,
    LONGEST,
    NAME,
    PAPER,
    QUIET,
    WHOLE,
    WIDTH,
    Picture,
    add_legend,
    colour,
    draw_heatmap,
    label_columns,
    label_rounds,
    legend_height,
    line_style,
    make_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 20
"""The picture of differences shows at most so many methods."""
MANY_METHODS = 10
"""From more methods than this on, pictures of all of them are larger, and their bands fainter."""


def curve_pictures(study: Study, share: float) -> list[Picture]:
    """Curves over rounds, bytes and seconds."""
    target = common_target(study, share)

    def curve(what: str) -> Picture:
        def paint(figure: Figure) -> None:
            axes = figure.subplots()
            for place, method in enumerate(study.methods):
                _curve(axes, study, method, place, what)
            if not math.isnan(target):
                axes.axhline(study.scale * target, color=QUIET, linewidth=0.8, dashes=(2, 3))
            curves = [mean_curve(study, method, what) for method in study.methods]
            shown = value_axis([part for curve in curves for part in (curve.mean, curve.low, curve.high)])
            axes.set_yscale("log" if shown.is_logarithmic else "linear")
            axes.set_ylim(*shown.edges)
            axes.set_ylabel(picture_text(f"test {label(study.metric)}", LONGEST))
            if what == "rounds":
                label_rounds(axes)
            else:
                axes.set_xlabel(AXES[what])
            add_legend(figure, axes)

        many = len(study.methods) > MANY_METHODS
        height = HEIGHT + many + legend_height(study.methods)
        return make_picture(
            f"curve-{what}",
            f"Test {study.metric} over {what}",
            explain_curves(study, share),
            paint,
            (WIDTH, height),
        )

    return [curve(what) for what in AXES]


def explain_curves(study: Study, share: float, marked: bool = True) -> str:
    """How to read curves of scores; `marked` says whether the target lies where it is seen."""
    several = ", averaged over seeds; the band spans the seeds" if len(study.seeds) > 1 else ""
    mean = "Sample-weighted mean" if study.comparison.protocol["headline"] == "weighted" else "Mean"
    best = "any method" if len(study.methods) > 1 else "the run"
    line = f" The dotted line is {100 * share:g} % of the best score of {best}." * marked
    return f"{mean} over all clients after each evaluated round{several}.{line}"


def _curve(axes: Axes, study: Study, method: str, place: int, what: str) -> None:
    at, mean, low, high = mean_curve(study, method, what)
    if len(study.seeds) > 1:
        faint = 0.06 if len(study.methods) > MANY_METHODS else 0.15
        axes.fill_between(at, low, high, color=colour(place), alpha=faint, linewidth=0)
    marker = "o" if len(at) <= MANY_DOTS else ""
    axes.plot(at, mean, marker=marker, markersize=2.5, **line_style(place, study.methods))


def difference_picture(study: Study) -> Picture:
    """Paired differences to the baseline with their intervals."""
    tested = [other for other in study.comparison.rows if other.versus is not None]
    others = tested[:MOST_ROWS]
    gains = [[study.scale * gain for gain in _seed_gains(study, other.method)] for other in others]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=QUIET, linewidth=1)
        for row, other in enumerate(others):
            place = study.methods.index(other.method)
            versus = other.versus
            assert versus is not None
            middle, scale = study.scale * versus.difference, study.scale
            if not math.isnan(versus.low):
                axes.plot([scale * versus.low, scale * versus.high], [row, row], color=colour(place))
            axes.plot(gains[row], [row] * len(gains[row]), "|", color=colour(place), markersize=7)
            axes.plot([middle], [row], "o", color=colour(place), markersize=5)
        axes.set_yticks(range(len(others)), picture_texts([other.method for other in others], NAME))
        axes.set_ylim(len(others) - 0.5, -0.5)
        # Neither an outlier nor an interval from two seeds may be all that is seen: they are cut at the edge.
        low, high = readable_range([*gains, [0.0]])
        room = max(high - low, 1e-9)
        left, right = axes.get_xlim()
        axes.set_xlim(left := max(left, low - room), right := min(right, high + room))
        for row, of_seeds in enumerate(gains):
            mean = float(np.mean(of_seeds))
            if math.isfinite(mean) and not left <= mean <= right:
                text, side = (f"{mean:.3g} →", "right") if mean > right else (f"← {mean:.3g}", "left")
                edge = right if mean > right else left
                axes.text(edge, row, text, ha=side, va="center", fontsize=8, backgroundcolor=PAPER)
        unit = " (points)" if study.metric == "accuracy" else ""
        axes.set_xlabel(picture_text(f"difference to {study.baseline} in test {study.metric}{unit}", LONGEST))

    most = f" The best {MOST_ROWS} of {len(tested)} methods." if len(tested) > MOST_ROWS else ""
    bar = " with its 95 % Student interval, cut at the edge where it is wide" if len(study.seeds) > 1 else ""
    return make_picture(
        "differences",
        f"Differences to {study.baseline}",
        f"Test {study.metric} at the selected round minus that of {study.baseline}: the mean over seeds{bar}; the ticks"
        f" are the seeds.{most}",
        paint,
        (WIDTH, 1.1 + 0.27 * len(others)),
    )


def _seed_gains(study: Study, method: str) -> list[float]:
    pairs = zip(study.comparison[method].scores, study.comparison[study.baseline].scores, strict=True)
    return [a - b for a, b in pairs]


def wins_picture(study: Study) -> Picture:
    """Which share of the clients each method wins against each other one."""
    shares = [[_won(study, row, column) for column in study.methods] for row in study.methods]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        names = study.methods
        written = (lambda share: f"{share:.0f}") if size <= 2.5 * MANY_METHODS else None
        draw_heatmap(axes, shares, "clients won (%)", names, names, 0, 100, "RdBu", written)
        label_columns(axes, names)
        axes.set_xlabel("... against")

    size = len(study.methods)
    return make_picture(
        "wins",
        "Win and loss, method against method",
        "Share of clients, over all seeds, on whose test data the method of the row beats that of the column at the"
        " selected round; a tie counts half.",
        paint,
        (WIDTH if size <= 1.5 * MANY_METHODS else WHOLE, 2.4 + min(0.27 * size, 8)),
    )


def _won(study: Study, row: str, column: str) -> float:
    if row == column:
        return math.nan
    record = win_tie_loss(*paired_scores(study, row, column), study.higher)
    return 100 * (record.wins + record.ties / 2) / max(1, sum(record))
