"""What each method decided, as pictures. A panel is chosen by the names of what a run recorded or stored, never by
the name of the method; what no panel knows is drawn as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.tree import Slots
from ..study import Study
from .partition import draw_label_shares
from .picture import INK, Picture, add_legend, colour, draw_heatmap, label_rounds
from .records import Records, draw_band, heatmap_height, record_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_LEAVES = 60
GATES = "pfedgate.tally"


def decision_pictures(study: Study, method: str) -> list[Picture]:
    """What one method decided."""
    records = Records(study, study.first(method))
    pictures: list[Picture] = []
    drawn: set[str] = set()
    for names, panel in PANELS:
        parts = {
            each: [n for n in records.names if n == each or n.startswith((f"{each}/", f"{each} "))] for each in names
        }
        if all(parts.values()):
            pictures += panel(records)
            drawn |= {name for part in parts.values() for name in part}
    return pictures + record_pictures(records, [name for name in records.names if name not in drawn])


# -- conflicts between clients, unit by unit ------------------------------------------------------------


def conflicts(records: Records) -> list[Picture]:
    """A heat map of conflict scores, and which units became personal."""
    units, personal = records.units("conflicts"), records.by_unit("personal")

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        draw_heatmap(axes, records.by_unit("conflicts"), "pairs in conflict", units, records.rounds, 0)
        row, column = np.nonzero(personal > 0)
        axes.scatter(column + 0.5, row + 0.5, s=26, facecolor="#fefefe", edgecolor="#111112", linewidths=0.8)
        axes.set_xlabel("round")

    text = "Pairs of clients whose updates of a unit point apart; a white dot: the unit is personal after that round."
    return [records.picture("conflicts", "Conflicts and personal units", text, paint, heatmap_height(units))]


# -- gates ------------------------------------------------------------------------------------------------


def gates(records: Records) -> list[Picture]:
    """The density that was achieved, the gates over rounds, and clients by their gates."""
    names = [name for name in records.names if name.startswith("gate ")]
    pictures = [densities(records), gate_histogram(records, names), gate_tree(records)]
    return [picture for picture in pictures if picture is not None]


def densities(records: Records) -> Picture:
    """Which share of the model was active and was sent."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (name, label) in enumerate((("density", "active in a batch"), ("sent", "sent"))):
            values = records.by_client(name)
            draw_band(
                axes, records.rounds, np.nanmin(values, 0), np.nanmedian(values, 0), np.nanmax(values, 0), place, label
            )
        axes.set_ylabel("share of the parameters")
        axes.set_ylim(0, 1.03)
        label_rounds(axes)
        add_legend(figure, axes)

    return records.picture("density", "Achieved density", "Median over clients; the band spans all of them.", paint)


def gate_histogram(records: Records, names: Sequence[str]) -> Picture:
    """How the mean gates of layers and clients are distributed, round by round."""
    values = np.stack([records.by_client(name) for name in names])
    finite = values[np.isfinite(values)]
    bins = np.linspace(finite.min(), max(finite.max(), finite.min() + 1e-6), 21)
    counts = [np.histogram(values[..., at], bins)[0] for at in range(len(records.rounds))]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        edges = np.arange(len(records.rounds) + 1) - 0.5
        mesh = axes.pcolormesh(edges, bins, np.array(counts).T, cmap="Blues")
        axes.grid(False)
        every = max(1, -(-len(records.rounds) // 15))
        axes.set_xticks(range(0, len(records.rounds), every), [str(round) for round in records.rounds[::every]])
        axes.figure.colorbar(mesh, ax=axes, label="gates", pad=0.02)
        axes.set_ylabel("mean gate")
        axes.set_xlabel("round")

    return records.picture(
        "gates", "Gates over rounds", "Histogram of the mean gate of each layer of each client.", paint
    )


def gate_tree(records: Records) -> Picture | None:
    """Clients joined by how alike their gates are, beside the labels they hold."""
    vectors, counts = gate_vectors(records)
    if not 3 <= len(vectors) <= MANY_LEAVES or counts is None:
        return None
    clients = list(vectors)

    def paint(figure: Figure) -> None:
        from scipy.cluster.hierarchy import dendrogram, linkage

        left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
        tree = linkage(np.stack(list(vectors.values())), "average")
        drawn = dendrogram(tree, orientation="left", ax=left, no_labels=True, link_color_func=lambda _: INK)
        left.grid(False)
        left.set_xlabel("distance of gates")
        left.spines["left"].set_visible(False)
        order = [clients[leaf] for leaf in drawn["leaves"] or ()]
        names = [records.study.federation.clients[c].name for c in order] if records.study.federation else []
        draw_label_shares(right, counts[order], names)
        right.invert_yaxis()

    text = "Average linkage of the clients' mean gates at the selected round, and the labels they hold."
    return records.picture("tree", "Clients by their gates", text, paint, 1.2 + 0.17 * len(clients))


def gate_vectors(records: Records) -> tuple[dict[int, np.ndarray], np.ndarray | None]:
    """The mean gates of the clients at the selected round, and how many samples of each class they hold."""
    with records.study.result(records.run.method) as result:
        data = records.study.federation
        if result is None or data is None or not data.classes:
            return {}, None
        states = result.store.clients(data.seen, result.store.fact("selected"))
    vectors = {i: gate_means(state) for i, state in states.items() if state is not None and GATES in state}
    lengths = [len(vector) for vector in vectors.values()]
    usual = max(set(lengths), key=lengths.count) if lengths else 0
    return {i: vector for i, vector in vectors.items() if len(vector) == usual}, data.label_counts().numpy()


def gate_means(state: Slots) -> np.ndarray:
    """The mean of each gate, 0 where it was closed."""
    return (state[GATES]["scale"] * state[GATES]["kept"]).numpy()


# -- shared and personal units of a layer -----------------------------------------------------------------


def split_units(records: Records) -> list[Picture]:
    """How stable the partition is, and the communalities that decide it."""
    layers = records.units("stable_units")

    def stability(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (layer, line) in enumerate(zip(layers, records.by_unit("stable_units"), strict=True)):
            axes.plot(records.rounds, 100 * line, color=colour(place), label=layer)
        axes.set_ylabel("units that stay on their side (%)")
        axes.set_ylim(0, 103)
        label_rounds(axes)
        add_legend(figure, axes)

    def course(figure: Figure) -> None:
        axes = figure.subplots()
        parts = (records.by_unit(f"communality_{what}") for what in ("min", "mean", "max"))
        for place, (layer, low, mean, high) in enumerate(zip(layers, *parts, strict=True)):
            draw_band(axes, records.rounds, low, mean, high, place, layer)
        axes.set_ylabel("communality ν")
        label_rounds(axes)
        add_legend(figure, axes)

    text = "Share of a layer's units that are shared, or personal, as they were after the round before."
    pictures = [
        records.picture("stable", "Stable units", text, stability),
        records.picture(
            "course", "Communalities over rounds", "Mean over a layer's units; the band spans them.", course
        ),
    ]
    known = communalities(records)
    return [*pictures, partition_of_units(records, known)] if known else pictures


def communalities(records: Records) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per layer, the communalities of its units and which are shared, at the selected round."""
    with records.study.result(records.run.method) as result:
        if result is None:
            return {}
        server = result.store.server(result.store.fact("selected"))
    communality, shared = server.get("fedfac.communality", {}), server.get("split.shared", {})
    return {name: (nu.numpy(), shared[name].numpy()) for name, nu in communality.items() if name in shared}


def partition_of_units(records: Records, known: dict[str, tuple[np.ndarray, np.ndarray]]) -> Picture:
    """The units of each layer by communality, shared and personal."""

    def paint(figure: Figure) -> None:
        panels: Sequence[Axes] = figure.subplots(1, len(known), squeeze=False, sharey=True)[0]
        for axes, (layer, (nu, shared)) in zip(panels, known.items(), strict=True):
            order = np.argsort(-nu, kind="stable")
            for place, (side, label) in enumerate(((shared, "shared"), (~shared, "personal"))):
                here = np.nonzero(side[order])[0]
                axes.scatter(here, nu[order][here], s=9, color=colour(place), label=label, linewidths=0)
            axes.set_xlabel(f"units of {layer}")
        panels[0].set_ylabel("communality ν")
        add_legend(figure, panels[0])

    text = "Communality of every unit of a layer at the selected round, highest first, and whether it is shared."
    return records.picture("communality", "Communalities and the partition", text, paint)


PANELS: tuple[tuple[tuple[str, ...], Callable[[Records], list[Picture]]], ...] = (
    (("conflicts", "personal"), conflicts),
    (("density", "sent", "gate"), gates),
    (("stable_units", "shared_units", "communality_min", "communality_mean", "communality_max"), split_units),
)
"""Which records a panel needs, and the panel."""
