"""Clients as pictures: how scores spread over them, who wins and who loses, and what they hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...analysis import effective_classes, win_tie_loss
from ...core.names import picture_text, picture_texts, slug
from ...core.tables import label, unit
from ...data import Federation
from ..scores import paired_scores
from ..study import Study
from .partition import draw_label_shares, paint_partition, partition_height
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
    legend_height,
    line_style,
    make_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCES = ("local", "fedavg")
MANY_CLIENTS = 30
"""Of more clients than this, those who gain most and least are shown."""
FEW_METHODS = 8
"""As many fit as columns into half the usual width."""
FEW_DOTS = 15
"""As many clients' dots, over all seeds, are large."""
WIDE = 15
"""From more clients than this on, the picture of the partition takes the whole width."""


def client_pictures(study: Study) -> list[Picture]:
    """The spread of scores, wins and losses and, where the data are there, who they are."""
    pictures = [spread_picture(study)]
    references = list(dict.fromkeys((*REFERENCES, study.baseline)))
    for reference in references:
        if reference in study.methods and len(study.methods) > 1:
            pictures.append(record_picture(study, reference))
    data = study.federation
    if data is None:
        return pictures
    for reference in references:
        if reference in study.methods and len(study.methods) > 1:
            pictures += [picture for picture in [gain_picture(study, data, reference)] if picture]
    if data.classes and (clients := comparable_clients(study)):
        pictures.append(who_picture(study, data, clients))
    return [*pictures, partition_picture(study, data)]


def spread_picture(study: Study) -> Picture:
    """A box per method, and a dot per client."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for row, method in enumerate(study.methods):
            runs = study.runs[method].values()
            scores = study.scale * np.array([score for run in runs for score in run.scores.values()])
            scores = scores[np.isfinite(scores)]
            jitter = 0.3 * (np.arange(len(scores)) * 0.618 % 1 - 0.5)
            few = len(scores) <= FEW_DOTS
            size, alpha = (22, 0.8) if few else (8, 0.4)
            axes.scatter(scores, row + jitter, s=size, color=colour(row), alpha=alpha, linewidths=0)
            if len(scores):
                _box(axes, scores, row)
        axes.set_yticks(range(len(study.methods)), picture_texts(study.methods, NAME))
        axes.set_ylim(len(study.methods) - 0.4, -0.6)
        axes.set_xlabel(picture_text(f"test {label(study.metric)} of a client"))

    return make_picture(
        "clients-spread",
        f"Test {study.metric} of every client",
        "A dot is a client under one seed, at the selected round; the box holds the middle half, the line is the"
        " median, the whiskers reach from the 10th to the 90th percentile.",
        paint,
        (WIDTH, 1.0 + 0.36 * len(study.methods)),
    )


def _box(axes: Axes, scores: np.ndarray, row: int) -> None:
    ink = axes.xaxis.label.get_color()
    low, first, middle, third, high = np.percentile(scores, (10, 25, 50, 75, 90))
    axes.plot([low, high], [row, row], color=ink, linewidth=0.8)
    axes.barh(row, third - first, 0.42, first, facecolor="none", edgecolor=ink, linewidth=0.9)
    axes.plot([middle, middle], [row - 0.21, row + 0.21], color=ink, linewidth=2)


def record_picture(study: Study, reference: str) -> Picture:
    """On how many clients each method wins, ties and loses."""
    others = [method for method in study.methods if method != reference]
    records = [win_tie_loss(*paired_scores(study, method, reference), study.higher) for method in others]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        shares = 100 * np.array(records) / np.maximum(1, np.sum(records, axis=1, keepdims=True))
        start = np.zeros(len(others))
        for part, (name, shade) in enumerate((("better", colour(0)), ("equal", QUIET), ("worse", colour(1)))):
            axes.barh(range(len(others)), shares[:, part], 0.7, start, color=shade, label=name)
            for row, share in enumerate(shares[:, part]):
                if share >= 7:
                    axes.text(
                        start[row] + share / 2, row, f"{records[row][part]}", ha="center", va="center", fontsize=8,
                        color=PAPER,
                    )  # fmt: skip
            start = start + shares[:, part]
        axes.set_yticks(range(len(others)), picture_texts(others, NAME))
        axes.set_ylim(len(others) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.grid(False)
        axes.set_xlabel("clients (%)")
        add_legend(figure, axes)

    return make_picture(
        f"clients-against-{slug(reference)}",
        f"Clients that gain and lose against {reference}",
        f"Clients over all seeds whose test {study.metric} at the selected round is better, equal or worse than with"
        f" {reference}; the numbers are clients.",
        paint,
        (WIDTH, 1.2 + 0.27 * len(others)),
    )


def gain_picture(study: Study, data: Federation, reference: str) -> Picture | None:
    """The gain of every client against its number of samples and of classes; None where all clients have the same."""
    others = [method for method in study.methods if method != reference]
    traits = {"training samples": [float(len(client)) for client in data.clients]}
    if data.classes:
        traits["effective classes"] = [effective_classes(counts) for counts in data.label_counts()]
    known = study.first(reference).scores
    traits = {name: values for name, values in traits.items() if len({values[client] for client in known}) > 1}
    if not traits:
        return None
    about = " Effective classes are the exponential of the entropy of a client's labels."

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(traits), sharey=True, squeeze=False)[0]
        for axes, (name, values) in zip(panels, traits.items(), strict=True):
            axes.axhline(0, color=QUIET, linewidth=1)
            for method in others:
                _draw_gains(axes, study, method, reference, values)
            axes.set_xlabel(name)
        panels[0].set_ylabel(picture_text(f"{study.metric} minus {reference}'s{gain_unit(study)}", LONGEST))
        add_legend(figure, panels[0])

    return make_picture(
        f"gain-over-{slug(reference)}",
        f"Who gains over {reference}",
        f"A dot is a client (seed {study.seeds[0]}); the lines join the mean gains of the clients with few, middling"
        f" and many.{about * ('effective classes' in traits)}",
        paint,
        (WIDTH, HEIGHT + legend_height(others)),
    )


def _draw_gains(axes: Axes, study: Study, method: str, reference: str, values: list[float]) -> None:
    scores, other = study.first(method).scores, study.first(reference).scores
    clients = [client for client in scores if math.isfinite(scores[client] - other.get(client, math.nan))]
    at = np.array([values[client] for client in clients])
    gains = study.scale * np.array([scores[client] - other[client] for client in clients])
    place = study.methods.index(method)
    axes.scatter(at, gains, s=9, color=colour(place), alpha=0.45, linewidths=0)
    thirds = [part for part in np.array_split(np.argsort(at, kind="stable"), 3) if len(part)]
    centres, means = ([float(values[part].mean()) for part in thirds] for values in (at, gains))
    axes.plot(centres, means, **line_style(place, study.methods))


def gain_unit(study: Study) -> str:
    """The unit of a difference between scores, in brackets."""
    return " (points)" if unit(study.metric) else ""


def comparable_clients(study: Study) -> list[int]:
    """The clients with a defined score of the baseline and of another method, under the first seed."""
    others = [study.first(method).scores for method in study.methods if method != study.baseline]
    return sorted(
        client
        for client, score in study.first(study.baseline).scores.items()
        if any(math.isfinite(scores.get(client, math.nan) - score) for scores in others)
    )


def who_picture(study: Study, data: Federation, clients: list[int]) -> Picture:
    """Clients by what they gain: their labels on the left, the gain of every method on the right."""
    baseline, first = study.baseline, study.first
    others = [method for method in study.methods if method != baseline]
    counts = data.label_counts().numpy()
    gains = np.array(
        [
            [first(m).scores.get(c, math.nan) - first(baseline).scores[c] for m in others]
            for c in clients
        ]
    )  # fmt: skip
    best_first = np.argsort(-np.nanmean(gains, axis=1) if study.higher else np.nanmean(gains, axis=1), kind="stable")
    if cut := len(clients) > MANY_CLIENTS:
        best_first = np.concatenate([best_first[: MANY_CLIENTS // 2], best_first[-MANY_CLIENTS // 2 :]])
    order = [clients[place] for place in best_first]
    many = len(others) > FEW_METHODS

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.1, 2 if many else 1))
        names = [f"{study.name_client(c)} ({len(data.clients[c])})" for c in order]
        draw_label_shares(left, counts[order], names, study.class_names)
        scaled = study.scale * gains[best_first]
        reach = float(np.nanmax(np.abs(scaled))) or 1.0
        draw_heatmap(right, scaled, f"gain{gain_unit(study)}", [""] * len(order), others, -reach, reach, "RdBu")
        label_columns(right, others, 20)

    return make_picture(
        "clients-who",
        f"Who gains over {baseline}, and what they hold",
        f"Clients (seed {study.seeds[0]}) with the number of their training samples, those who gain most first"
        f"{', and only those who gain most and least' if cut else ''}. Left: the labels they hold. Right: their test"
        f" {study.metric} minus that with {baseline}.",
        paint,
        (WHOLE if many else WIDTH, 2 + 0.17 * len(order)),
    )


def partition_picture(study: Study, data: Federation) -> Picture:
    """Who holds what."""
    return make_picture(
        "partition",
        "Who holds what",
        f"The samples{' and the labels' * bool(data.classes)} of every client, seed {study.seeds[0]}.",
        lambda figure: paint_partition(figure, data),
        (WHOLE if len(data) > WIDE else WIDTH, partition_height(data)),
    )
