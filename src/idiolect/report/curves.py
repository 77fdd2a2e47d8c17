"""The leaderboard and the course of the runs as pictures: differences, wins, curves over rounds, bytes and seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..analysis import first_reaching, target_score, win_tie_loss
from .pictures import (
    HEIGHT,
    QUIET,
    WIDTH,
    Picture,
    colour,
    heat,
    legend,
    legend_height,
    line_of,
    named_columns,
    painted,
    rounds_axis,
    shortened,
)
from .runs import Run, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_METHODS = 10
"""From more methods than this on, pictures of all of them are larger, and their bands fainter."""
AXES = {"rounds": "round", "bytes": "MB up and down", "seconds": "seconds"}


class Reached(NamedTuple):
    """When a method reaches a target, on average over seeds; NaN if not under every seed."""

    rounds: float
    megabytes: float
    seconds: float


def spent(run: Run, what: str) -> list[float]:
    """The position of each evaluated round on one of the axes."""
    if what == "rounds":
        return [float(round) for round in run.curve.rounds]
    costs = [run.costs[round] for round in run.curve.rounds]
    return [cost.seconds if what == "seconds" else (cost.bytes_up + cost.bytes_down) / 1e6 for cost in costs]


def reached(study: Study, method: str, target: float) -> Reached:
    """How much a method spends, on average over seeds, until its test score first reaches a target."""
    found = []
    for run in study.runs[method].values():
        place = first_reaching(run.curve.values, target, study.higher)
        found.append([math.nan if place is None else spent(run, what)[place] for what in AXES])
    return Reached(*(float(each) for each in np.mean(found, axis=0)))


def best_of(study: Study, method: str) -> float:
    """The best test score on a method's way, on average over seeds."""
    return study.comparison[method].best.mean


def common_target(study: Study, share: float) -> float:
    """A share of the best test score that any method reaches."""
    scores = [best_of(study, method) for method in study.methods]
    scores = [score for score in scores if not math.isnan(score)] or [math.nan]
    return target_score(max(scores) if study.higher else min(scores), share, study.higher)


def percent(study: Study) -> float:
    """By what scores are multiplied to be shown."""
    return 100.0 if study.metric == "accuracy" else 1.0


def score_label(study: Study) -> str:
    """The name of the score with its unit."""
    return f"{study.metric} (%)" if study.metric == "accuracy" else study.metric


def pictures(study: Study, share: float) -> list[Picture]:
    """Curves over rounds, bytes and seconds."""
    several = "; the band spans the seeds" if len(study.seeds) > 1 else ""
    target = common_target(study, share)

    def curve(what: str) -> Picture:
        def paint(figure: Figure) -> None:
            axes = figure.subplots()
            for place, method in enumerate(study.methods):
                _curve(axes, study, method, place, what)
            if not math.isnan(target):
                axes.axhline(percent(study) * target, color=QUIET, linewidth=0.8, dashes=(2, 3))
            axes.set_ylabel(f"test {score_label(study)}")
            if what == "rounds":
                rounds_axis(axes)
            else:
                axes.set_xlabel(AXES[what])
            legend(figure, axes)

        many = len(study.methods) > MANY_METHODS
        height = HEIGHT + many + legend_height(study.methods)
        return painted(
            f"curve-{what}",
            f"Test {study.metric} over {what}",
            f"Sample-weighted mean over all clients after each evaluated round, averaged over seeds{several}. The"
            f" dotted line is {100 * share:g} % of the best score of any method.",
            paint,
            (WIDTH, height),
        )

    return [curve(what) for what in AXES]


def _curve(axes: Axes, study: Study, method: str, place: int, what: str) -> None:
    runs = list(study.runs[method].values())
    length = min(len(run.curve.rounds) for run in runs)
    values = percent(study) * np.array([run.curve.values[:length] for run in runs])
    at = np.mean([spent(run, what)[:length] for run in runs], axis=0)
    if len(runs) > 1:
        faint = 0.06 if len(study.methods) > MANY_METHODS else 0.15
        axes.fill_between(at, values.min(0), values.max(0), color=colour(place), alpha=faint, linewidth=0)
    marker = "o" if length == 1 else ""
    axes.plot(at, values.mean(0), marker=marker, **line_of(place, method))


def difference_picture(study: Study) -> Picture:
    """Paired differences to the baseline with their intervals."""
    others = [each for each in study.comparison.rows if each.versus is not None]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=QUIET, linewidth=1)
        for row, each in enumerate(others):
            place = study.methods.index(each.method)
            versus = each.versus
            assert versus is not None
            middle, scale = percent(study) * versus.difference, percent(study)
            if not math.isnan(versus.low):
                axes.plot([scale * versus.low, scale * versus.high], [row, row], color=colour(place))
            gains = _gains(study, each.method)
            axes.plot([scale * gain for gain in gains], [row] * len(gains), "|", color=colour(place), markersize=7)
            axes.plot([middle], [row], "o", color=colour(place), markersize=5)
        axes.set_yticks(range(len(others)), [shortened(each.method) for each in others])
        axes.set_ylim(len(others) - 0.5, -0.5)
        # An interval from two seeds can be so wide that nothing else would be seen; it is then cut at the edge.
        points = [percent(study) * gain for each in others for gain in _gains(study, each.method)] + [0.0]
        room = max(1.5 * (max(points) - min(points)), 1e-9)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(points) - room), min(high, max(points) + room))
        unit = " (points)" if study.metric == "accuracy" else ""
        axes.set_xlabel(f"difference to {study.baseline} in test {study.metric}{unit}")

    bar = " with its 95 % Student interval, cut at the edge where it is wide" if len(study.seeds) > 1 else ""
    return painted(
        "differences",
        f"Differences to {study.baseline}",
        f"Test {study.metric} at the selected round minus that of {study.baseline}: the mean over seeds{bar}; the ticks"
        " are the seeds.",
        paint,
        (WIDTH, 1.1 + 0.27 * len(others)),
    )


def _gains(study: Study, method: str) -> list[float]:
    pairs = zip(study.comparison[method].scores, study.comparison[study.baseline].scores, strict=True)
    return [a - b for a, b in pairs]


def wins_picture(study: Study) -> Picture:
    """Which share of the clients each method wins against each other one."""
    shares = [[_won(study, row, column) for column in study.methods] for row in study.methods]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        names = [shortened(each) for each in study.methods]
        written = (lambda share: f"{share:.0f}") if size <= 2.5 * MANY_METHODS else None
        heat(axes, shares, "clients won (%)", names, names, 0, 100, "RdBu", written)
        named_columns(axes, names)
        axes.set_xlabel("... against")

    size = len(study.methods)
    return painted(
        "wins",
        "Win and loss, method against method",
        "Share of clients, over all seeds, on whose test data the method of the row beats that of the column at the"
        " selected round; a tie counts half.",
        paint,
        (WIDTH if size <= 1.5 * MANY_METHODS else 2 * WIDTH, 2.4 + min(0.27 * size, 8)),
    )


def _won(study: Study, row: str, column: str) -> float:
    if row == column:
        return math.nan
    record = win_tie_loss(*paired_scores(study, row, column), study.higher)
    return 100 * (record.wins + record.ties / 2) / max(1, sum(record))


def paired_scores(study: Study, a: str, b: str) -> tuple[list[float], list[float]]:
    """The scores of two methods on the same clients under the same seeds."""
    pairs = [
        (score, study.runs[b][seed].scores[client])
        for seed, run in study.runs[a].items()
        for client, score in run.scores.items()
        if client in study.runs[b][seed].scores
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]
