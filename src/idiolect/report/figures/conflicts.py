"""Conflicts between clients, unit by unit: what a run found and chose, what theory predicts of the choice, and the
conflicts of several runs beside each other, which need not belong into one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import OptionError, RunFolderError
from ...core.names import picture_text
from ..folders import read_study
from .picture import (
    FORMATS,
    HEIGHT,
    LONGEST,
    WHOLE,
    WIDTH,
    Picture,
    draw_heatmap,
    label_rounds,
    make_picture,
    style,
)
from .records import Records, draw_band, heatmap_height, label_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def conflicts(records: Records) -> list[Picture]:
    """A heat map of conflict scores, which units became personal, and when others did."""
    units, changed = records.units("conflicts"), changes(records)

    def paint(figure: Figure) -> None:
        draw_conflicts(figure.subplots(), records)

    times = f"changed after {len(changed)} rounds" if len(changed) != 1 else "changed after one round"
    text = (
        "Pairs of clients whose updates of a unit point apart; a white dot: the unit is personal after that round. "
        f"The choice {times if changed else 'never changed'}{' (dashed lines)' if changed else ''}."
    )
    return [records.picture("conflicts", "Conflicts and personal units", text, paint, heatmap_height(units))]


def changes(records: Records) -> list[int]:
    """After which of the rounds other units were personal than before, by their places."""
    counts = records.by_client("personal_changes")[0]
    return [place for place in range(1, len(counts)) if counts[place] > counts[place - 1]]


def draw_conflicts(axes: Axes, records: Records, high: float | None = None, has_bar: bool = True) -> None:
    """Units against rounds, dots where a unit is personal, and lines where the choice changed."""
    pairs, personal = records.by_unit("conflicts"), records.by_unit("personal")
    draw_heatmap(axes, pairs, "pairs in conflict", records.units("conflicts"), records.rounds, 0, high, has_bar=has_bar)
    row, column = np.nonzero(personal > 0)
    axes.scatter(column + 0.5, row + 0.5, s=26, facecolor="#fefefe", edgecolor="#111112", linewidths=0.8)
    for place in changes(records):
        axes.axvline(place, color="#fefefe", linestyle="--", linewidth=1)
    label_units(axes)


def gains(records: Records) -> list[Picture]:
    """What each unit, if it were personal, would gain, who gains, and what that adds to the bound."""
    units = records.units("gain")

    def by_unit(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        with np.errstate(divide="ignore"):
            sizes = np.log10(records.by_unit("gain"))
        draw_heatmap(left, sizes, "log10 of the mean gain", units, records.rounds)
        share = 100 * records.by_unit("gainers")
        # Two colour bars alike would be two images with one id in the page.
        draw_heatmap(right, share, "clients that gain (%)", units, records.rounds, 0, 100, "cividis")
        right.set_yticklabels([])
        label_units(left)
        right.set_xlabel("round")

    def bound(figure: Figure) -> None:
        axes = figure.subplots()
        low, high = (records.by_client(f"bound_{end}")[0] for end in ("least", "most"))
        draw_band(axes, records.rounds, low, (low + high) / 2, high)
        axes.set_ylabel("what the last term adds")
        label_rounds(axes)

    gain = (
        "Predicted to first order, if clients kept their own updates of a unit instead of the mean one. The mean gain "
        "is the spread of their updates, which is never negative, conflicts or not; the lemma says that all clients "
        "gain."
    )
    rise = (
        "The theorem's constant is negative for every learning rate that it admits, so its last term raises the bound. "
        "The band spans all smoothness constants for which the learning rate is admissible."
    )
    return [
        records.picture("gain", "Predicted gain of a personal unit", gain, by_unit, heatmap_height(units), WHOLE),
        records.picture("bound", "Personal units in the convergence bound", rise, bound),
    ]


def write_conflicts(folders: Sequence[str | Path], out: str | Path, trust: bool = False) -> Path:
    """Draw the conflicts of several runs beside each other, on one scale of colours, and return the file.

    The runs may differ in anything, such as the partition; each of the folders may hold a run or a comparison, of which
    every method that recorded conflicts has a panel. The suffix of the file is its format. `fedlag(k=0)` is FedAvg that
    records conflicts.

    >>> import idiolect
    >>> folder = getfixture("tmp_path")
    >>> for partition in ("iid", "dirichlet:0.1"):
    ...     name = folder / partition.partition(":")[0]
    ...     _ = idiolect.run("fedlag(k=0)", partition=partition, clients=4, rounds=2, model="mlp", out=name)
    >>> write_conflicts([folder / "iid", folder / "dirichlet"], folder / "conflicts.svg").name
    'conflicts.svg'
    """
    path = Path(out)
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise OptionError(f"{path.name} has no known format; choose one of {', '.join('.' + each for each in FORMATS)}")
    studies = [read_study([folder], trust=trust) for folder in folders]
    found = [Records(study, study.first(method)) for study in studies for method in study.methods]
    found = [records for records in found if records.units("conflicts")]
    if not found:
        raise RunFolderError("none of the runs recorded conflicts; run fedlag, or fedlag(k=0) for FedAvg's conflicts")
    highest = max(float(np.nanmax(records.by_unit("conflicts"))) for records in found)
    names = [str(records.run.summary["partition"]["name"]) for records in found]
    if len(set(names)) < len(names):
        names = [f"{name}: {records.run.method}" for name, records in zip(names, found, strict=True)]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, records, title in zip(panels, found, names, strict=True):
            draw_conflicts(axes, records, max(highest, 1), has_bar=axes is panels[-1])
            axes.set_title(picture_text(title, LONGEST))

    height = max(heatmap_height(records.units("conflicts")) for records in found)
    picture = make_picture(path.stem, "Conflicts", "", paint, (0.4 + 0.85 * WIDTH * len(found), max(height, HEIGHT)))
    with style():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror}") from error
    return path
