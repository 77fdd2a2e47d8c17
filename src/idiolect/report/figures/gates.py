"""What gating networks decided: the density that was achieved, gates over rounds, and clients by their gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...analysis import cluster_by_ward, common_members
from ...core.tree import Tree
from .partition import draw_label_shares
from .picture import INK, LIGHT, Picture, add_legend, label_rounds, turn_image
from .records import Records, draw_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_LEAVES = 60
FEW_LEAVES = 20
"""Up to so many clients, what groups have in common is written at every merge."""
HELD = 0.05
"""The share of its samples from which on a client is said to hold a label."""
GATE = "pfedgate.gate"


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
        turn_image(axes.figure.colorbar(mesh, ax=axes, label="gates", pad=0.02).ax)
        mesh.set_gid(LIGHT)
        axes.set_ylabel("mean gate")
        axes.set_xlabel("round")

    return records.picture(
        "gates", "Gates over rounds", "Histogram of the mean gate of each layer of each client.", paint
    )


def gate_tree(records: Records) -> Picture | None:
    """Clients joined by how near their gating networks are, beside the labels they hold."""
    known, counts = gating_networks(records)
    if not 3 <= len(known) <= MANY_LEAVES or counts is None:
        return None
    clients = list(known)
    merges = cluster_by_ward(list(known.values()))
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    held = [set(np.flatnonzero(shares[client] >= HELD).tolist()) for client in clients]
    common = common_members(merges, held)

    def paint(figure: Figure) -> None:
        from scipy.cluster.hierarchy import dendrogram

        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
        drawn = dendrogram(merges, orientation="left", ax=left, no_labels=True, link_color_func=lambda _: INK)
        left.grid(False)
        left.set_xlabel("distance of gating networks")
        left.spines["left"].set_visible(False)
        leaves = drawn["leaves"] or []
        if len(clients) <= FEW_LEAVES:
            write_common(left, merges, leaves, common)
        order = [clients[leaf] for leaf in leaves]
        names = [records.study.name_client(client) for client in order]
        draw_label_shares(right, counts[order], names, records.study.class_names)
        right.invert_yaxis()

    text = "Ward's clustering of the parameters of the clients' gating networks at the selected round, and the labels"
    text += " they hold"
    if len(clients) <= FEW_LEAVES:
        text += f"; at a merge, the labels of which all of its clients hold at least {HELD:.0%}"
    return records.picture("tree", "Clients by their gates", f"{text}.", paint, 1.2 + 0.2 * len(clients))


def write_common(axes: Axes, merges: np.ndarray, leaves: Sequence[int], common: Sequence[frozenset[int]]) -> None:
    """Write beside every merge which labels its clients have in common."""
    heights = [5.0 + 10.0 * leaves.index(client) for client in range(len(leaves))]  # where SciPy draws them
    for (first, second, distance, _), labels in zip(merges, common, strict=True):
        heights.append((heights[int(first)] + heights[int(second)]) / 2)
        text = ", ".join(map(str, sorted(labels))) or "none"
        axes.annotate(text, (distance, heights[-1]), (-2, 2), textcoords="offset points", ha="right", fontsize=6)


def gating_networks(records: Records) -> tuple[dict[int, Tree], np.ndarray | None]:
    """The clients' gating networks at the selected round, and how many samples of each class they hold."""
    with records.study.result(records.run.method) as result:
        data = records.study.federation
        if result is None or data is None or not data.classes:
            return {}, None
        states = result.store.clients(data.seen, result.store.fact("selected"))
    known = {index: state[GATE] for index, state in states.items() if state is not None and GATE in state}
    return known, data.label_counts().numpy()
