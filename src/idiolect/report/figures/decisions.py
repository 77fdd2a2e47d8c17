"""What each method decided, as pictures. A panel is chosen by the names of what a run recorded or stored, never by
the name of the method; what no panel knows is drawn as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.names import picture_text
from ..study import Study
from .conflicts import conflicts, gains
from .gates import gates
from .picture import NAME, Picture, add_legend, colour, label_rounds
from .records import Records, draw_band, record_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def decision_pictures(study: Study, method: str) -> list[Picture]:
    """What one method decided."""
    records = Records(study, study.first(method))
    pictures: list[Picture] = []
    drawn: set[str] = set()
    for names, panel in PANELS:
        parts = {
            prefix: [n for n in records.names if n == prefix or n.startswith((f"{prefix}/", f"{prefix} "))]
            for prefix in names
        }
        if all(parts.values()):
            pictures += panel(records)
            drawn |= {name for part in parts.values() for name in part}
    return pictures + record_pictures(records, [name for name in records.names if name not in drawn])


# -- shared and personal units of a layer -----------------------------------------------------------------


def split_units(records: Records) -> list[Picture]:
    """How stable the partition is, and the communalities that decide it."""
    layers = records.units("stable_units")

    def stability(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (layer, line) in enumerate(zip(layers, records.by_unit("stable_units"), strict=True)):
            axes.plot(records.rounds, 100 * line, color=colour(place), label=picture_text(layer, NAME))
        axes.set_ylabel("units that stay on their side (%)")
        axes.set_ylim(0, 103)
        label_rounds(axes)
        add_legend(figure, axes, "layer")

    def course(figure: Figure) -> None:
        axes = figure.subplots()
        parts = (records.by_unit(f"communality_{what}") for what in ("min", "mean", "max"))
        for place, (layer, low, mean, high) in enumerate(zip(layers, *parts, strict=True)):
            draw_band(axes, records.rounds, low, mean, high, place, layer)
        axes.set_ylabel("communality ν")
        label_rounds(axes)
        add_legend(figure, axes, "layer")

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
                places = np.nonzero(side[order])[0]
                axes.scatter(places, nu[order][places], s=9, color=colour(place), label=label, linewidths=0)
            axes.set_xlabel(picture_text(f"units of {layer}", NAME))
        panels[0].set_ylabel("communality ν")
        add_legend(figure, panels[0])

    text = "Communality of every unit of a layer at the selected round, highest first, and whether it is shared."
    return records.picture("communality", "Communalities and the partition", text, paint)


PANELS: tuple[tuple[tuple[str, ...], Callable[[Records], list[Picture]]], ...] = (
    (("conflicts", "personal", "personal_changes"), conflicts),
    (("gain", "gainers", "bound_least", "bound_most"), gains),
    (("density", "sent", "gate"), gates),
    (("stable_units", "shared_units", "communality_min", "communality_mean", "communality_max"), split_units),
)
"""Which records a panel needs, and the panel."""
