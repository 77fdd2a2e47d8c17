"""Pictures of who holds what: clients against classes, for the terminal and for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import InputError
from ...core.names import picture_text, picture_texts, shorten, visible
from ...data.federation import Federation
from ...data.naming import list_names
from .picture import FORMATS, LONGEST, NAME, draw_heatmap, matplotlib_settings, save_figure, turn_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISCS = 40
WIDEST = 40
"""The longest name of a client on the terminal."""
_SHADES = ((0.5, "█"), (0.25, "▓"), (0.05, "▒"), (0.0, "░"))
_SEEN, _UNSEEN = "#2b6cb0", "#c05621"
_STYLE = {"svg.hashsalt": "idiolect", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def partition_text(federation: Federation, limit: int = 40) -> str:
    """A picture for the terminal: one row per client, one column per class, darker where it holds more.

    >>> from idiolect.data import load
    >>> print(partition_text(load("digits", partition="pathological:5", clients=4)))
    client    samples  0 1 2 3 4 5 6 7 8 9
    ...
    """
    names = [
        shorten(visible(client.name), WIDEST) + "*" * (at in federation.unseen)
        for at, client in enumerate(federation.clients)
    ]
    sizes = [len(client.indices) for client in federation.clients]
    wide, counted = max(6, *map(len, names)), max(7, *(len(str(size)) for size in sizes))
    classes = federation.label_counts().shape[1] if federation.classes else 0
    cell = len(str(classes - 1)) + 1 if classes <= 30 else 1
    header = "".join(f"{label:>{cell}}" for label in range(classes)) if classes <= 30 else f"{classes} classes"
    lines = [f"{'client':<{wide}}  {'samples':>{counted}} {header}".rstrip()]
    rows = _rows(federation, sizes, cell)
    for at in range(min(limit, len(names))):
        lines.append(f"{names[at]:<{wide}}  {sizes[at]:>{counted}} {rows[at]}".rstrip())
    if len(names) > limit:
        lines.append(f"... and {len(names) - limit} more")
    if classes:
        lines.append("share of the client's samples:  · none  ░ under 5 %  ▒ under 25 %  ▓ under 50 %  █ more")
    if federation.class_names:
        which = "classes, of which each client numbers its own" if federation.own_labels else "classes"
        lines.append(visible(f"{which}: {list_names(federation.class_names)}"))
    if federation.unseen:
        lines.append("* unseen: never trains")
    return "\n".join(lines)


def _rows(federation: Federation, sizes: list[int], cell: int) -> list[str]:
    """What stands right of each client: a shade per class, or a bar where there are no classes."""
    if federation.classes is None:
        return ["█" * max(1, round(30 * size / max(sizes))) for size in sizes]
    counts = federation.label_counts()
    shares = (counts / counts.sum(1, keepdim=True)).tolist()
    return ["".join(_shade(share).rjust(cell) for share in row) for row in shares]


def _shade(share: float) -> str:
    return "·" if share == 0 else next(block for bound, block in _SHADES if share >= bound)


def draw_partition(federation: Federation, path: str | Path) -> None:
    """Draw clients against classes; discs by number of samples, or colours where there are many. The
    suffix is the format.

    >>> from idiolect.data import load
    >>> draw_partition(load("digits", clients=10), getfixture("tmp_path") / "partition.svg")
    """
    if Path(path).suffix.lower() not in (endings := [f".{ending}" for ending in FORMATS]):
        raise InputError(f"cannot draw to {str(path)!r}; the name must end in {', '.join(endings)}")
    width = float(np.clip(1.8 + 0.32 * len(federation), 6.4, 15))
    with matplotlib_settings(_STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, partition_height(federation) + 0.2), layout="constrained")
        paint_partition(figure, federation)
        title = f"{federation.name}, {len(federation)} clients, {federation.partition}"
        figure.suptitle(picture_text(title, LONGEST), fontsize=10)
        save_figure(figure, Path(path), dpi=150)


def partition_height(federation: Federation) -> float:
    """The inches that the picture of a partition takes."""
    names = [client.name for client in federation.clients] if len(federation) <= DISCS else []
    return sum(_heights(federation)) + 0.9 + 0.07 * min(NAME, max(map(len, names), default=0))


def paint_partition(figure: Figure, federation: Federation) -> None:
    """Draw clients against classes on a figure."""
    heights, classes = _heights(federation), federation.classes or 0
    panels = figure.subplots(
        2 if classes else 1, 1, sharex=True, squeeze=False, height_ratios=heights[: 1 + bool(classes)]
    )
    _draw_sizes(panels[0, 0], federation)
    if classes:
        _draw_labels(panels[1, 0], federation, figure.get_figwidth(), heights[1])
    _label_clients(panels[-1, 0], federation)


def _heights(federation: Federation) -> tuple[float, float]:
    classes = len(federation.class_names) or federation.classes
    return 1.1, float(np.clip(0.3 * classes, 1.5, 9)) if classes else 0.01


def draw_label_shares(axes: Axes, counts: np.ndarray, names: Sequence[str], classes: Sequence[str] = ()) -> None:
    """A heat map of the classes that some clients hold, from their counts [clients, classes]; `classes` are their
    names, if they have some."""
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    columns = picture_texts(classes, NAME) or range(counts.shape[1])
    draw_heatmap(axes, 100 * shares, "% of samples", names, columns, 0, 100, "Blues")
    axes.set_xlabel("class")


def _draw_sizes(axes: Axes, federation: Federation) -> None:
    sizes = np.array([len(client.indices) for client in federation.clients])
    for clients, colour, meaning in ((federation.seen, _SEEN, "seen"), (sorted(federation.unseen), _UNSEEN, "unseen")):
        axes.bar(clients, sizes[list(clients)], color=colour, width=0.7, label=f"{meaning} clients")
    if federation.unseen:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.95), ncols=2, frameon=False)
    axes.set_ylabel("samples")
    axes.tick_params(bottom=False)


def _draw_labels(axes: Axes, federation: Federation, width: float, height: float) -> None:
    counts = federation.label_counts().numpy()
    clients, classes = counts.shape
    if clients <= DISCS and classes <= DISCS:
        _draw_discs(axes, federation, counts, 72 * min(0.8 * width / clients, 0.8 * height / classes, 0.3))
    else:
        image = axes.imshow(
            np.where(counts > 0, counts, np.nan).T,
            norm="log",
            cmap="Blues",
            vmin=0.3,
            aspect="auto",
            interpolation="none",
        )
        bar = axes.figure.colorbar(image, ax=axes, label="samples", pad=0.01)
        bar.ax.set_ylim(1, max(2, counts.max()))
        turn_image(axes)
        turn_image(bar.ax)
    axes.set_ylim(classes - 0.4, -0.6)
    every = range(0, classes, 1 if classes <= DISCS else 10)
    axes.set_yticks(every, [class_label(federation, number) for number in every])
    axes.set_ylabel("class")


def class_label(federation: Federation, number: int) -> str:
    """What stands beside a class in a picture: its name, or its number."""
    names = federation.class_names
    return picture_text(names[number], NAME) if names else str(number)


def _draw_discs(axes: Axes, federation: Federation, counts: np.ndarray, diameter: float) -> None:
    """Discs whose area is the number of samples, the largest of this diameter in points."""
    unit = diameter**2 / counts.max()
    at, label = np.nonzero(counts)
    colours = [_UNSEEN if client in federation.unseen else _SEEN for client in at]
    axes.grid(color="#e2e8f0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.scatter(at, label, s=np.maximum(counts[at, label] * unit, 0.8), c=colours, linewidths=0)
    for count in sorted({1, _round(counts.max() / 8), _round(counts.max())}):
        axes.scatter([], [], s=count * unit, c=_SEEN, linewidths=0, label=f"{count}")
    axes.legend(title="samples", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _round(count: float) -> int:
    """The number with one leading digit, and no smaller than 1."""
    scale = int(10 ** max(0, len(str(int(count))) - 1))
    return max(1, int(count) // scale * scale)


def _label_clients(axes: Axes, federation: Federation) -> None:
    axes.set_xlabel("client")
    axes.set_xlim(-0.6, len(federation) - 0.4)
    names = [client.name for client in federation.clients]
    if len(names) > DISCS:
        axes.set_xticks(range(0, len(names), 1 if len(names) <= DISCS else 10))
    else:
        axes.set_xticks(range(len(names)), picture_texts(names, NAME), rotation=90)
