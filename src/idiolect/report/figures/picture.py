"""Pictures: how figures are drawn, saved for a paper, and put into a page so that they follow its colours. What they
show is the business of other modules."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import MissingExtraError
from ...core.names import picture_text, picture_texts, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
INK, PAPER, GRID, QUIET = "#1b1c1e", "#fdfdfd", "#d8dbdf", "#6b7280"
COLOURS = (
    "#1f6fb4", "#d2601a", "#2b8a4b", "#8a55b5", "#c23b4b", "#1a8a92", "#8a6038", "#c2549f", "#84831a", "#6b7280",
)  # fmt: skip
PAGE_COLOURS = {
    **{colour: f"var(--c{place})" for place, colour in enumerate(COLOURS)},
    **{INK: "currentColor", "#000000": "currentColor", PAPER: "var(--paper)", GRID: "var(--grid)"},
    **{"#e2e8f0": "var(--grid)", "#2b6cb0": "var(--c0)", "#c05621": "var(--c1)"},  # of the picture of a partition
}
"""What the page puts in the place of fixed colours."""
LIGHT, LIGHT_MAPS = "light", ("Blues", "RdBu")
"""What the ids of shades begin with that are white in their middle or at their end, which a dark page turns around."""
DASHES = ("-", "--", ":", "-.")
WIDTH, HEIGHT = 5.2, 3.3
WHOLE = 2.03 * WIDTH
"""The width of a picture that takes the whole width of a page; its type is then as large as that of the others."""
NAME = 24
"""The longest name beside an axis."""
LONGEST = 80
"""The longest text along an axis."""
LONG = 30
"""The longest name in a legend."""
MANY_CELLS = 4000
"""From so many cells on, a heat map is stored as an image inside the picture."""
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "idiolect",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Picture:
    """A figure: the name of its file, a title, a caption that says how to read it, and how it is drawn.

    Attributes:
        wide: whether it needs the whole width of a page.
        method: the method that it is about; empty if it is about all.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Path], None]
    wide: bool = False
    method: str = ""

    def save(self, path: Path) -> None:
        """Draw it into a file; the suffix is the format."""
        with style({"savefig.facecolor": "white"}):
            self.draw(path)

    def inline(self) -> str:
        """The picture as an SVG element that takes its colours from the page."""
        with tempfile.TemporaryDirectory() as folder, style({"svg.fonttype": "none"}):
            path = Path(folder) / "picture.svg"
            self.draw(path)
            return embed_svg(path.read_text(encoding="utf-8"), self.name, self.title)


@contextmanager
def matplotlib_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Draw with some settings of matplotlib; an error that says what to install where it is missing."""
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise MissingExtraError("figures need matplotlib: pip install idiolect[plot]") from error
    with rc_context(dict[Any, Any](settings)):
        yield


def style(more: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
    """Draw in the one style of all pictures."""
    return matplotlib_settings({**_STYLE, **(more or {})})


def make_picture(
    name: str,
    title: str,
    caption: str,
    paint: Callable[[Figure], None],
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Picture:
    """A picture that a function paints on a figure of a size in inches; one wider than usual is a wide picture."""

    def draw(path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        save_figure(figure, path)

    return Picture(name, title, caption, draw, wide=size[0] > WIDTH)


def save_figure(figure: Figure, path: Path, dpi: int = 200) -> None:
    """Save a figure without the date, so that the same figure is the same file."""
    date = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    figure.savefig(path, dpi=dpi, metadata={date: None} if date else None)


def embed_svg(svg: str, name: str, title: str) -> str:
    """An SVG file as an element of a page: own ids, no fixed size, and the page's colours instead of fixed ones.

    >>> embed_svg('<?xml?><svg width="9pt" id="a"><g style="fill: #1b1c1e" clip-path="url(#a)"/></svg>', "x", "A & B")
    '<svg role="img" aria-label="A &amp; B" id="x-a"><g style="fill: currentColor" clip-path="url(#x-a)"/></svg>'
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=<svg)((?: [\w:]+="[^"]*")*)', lambda match: _opening(match[1], title), svg, count=1)
    svg = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', f"{name}-", svg)
    for fixed, themed in PAGE_COLOURS.items():
        svg = svg.replace(fixed, themed)
    return svg


def _opening(attributes: str, title: str) -> str:
    sized = re.sub(r' (?:width|height|version|xmlns:xlink|xmlns)="[^"]*"', "", attributes)
    return f' role="img" aria-label="{escape(visible(title), quote=True)}"{sized}'


# -- what several pictures need -------------------------------------------------------------------------


def colour(place: int) -> str:
    """The colour of the method at a place of the leaderboard."""
    return COLOURS[place % len(COLOURS)]


def line_style(place: int, methods: Sequence[str]) -> dict[str, Any]:
    """How the line of one of the methods is drawn, solid until the colours are used up, and called in a legend."""
    dashes = DASHES[place // len(COLOURS) % len(DASHES)]
    return {"linestyle": dashes, "color": colour(place), "label": picture_texts(methods, LONG)[place]}


def draw_heatmap(
    axes: Axes,
    values: Any,
    label: str,
    rows: Sequence[str],
    columns: Sequence[Any],
    low: float | None = None,
    high: float | None = None,
    cmap: str = "viridis",
    written: Callable[[float], str] | None = None,
    has_bar: bool = True,
) -> None:
    """A heat map with named rows and columns, if wanted a colour bar, and the number in every cell."""
    grid = np.ma.masked_invalid(np.asarray(values, float))
    mesh = axes.pcolormesh(grid, cmap=cmap, vmin=low, vmax=high, edgecolors="face", linewidth=0.4)
    mesh.set_rasterized(grid.size > MANY_CELLS)
    is_light, number = cmap in LIGHT_MAPS, axes.figure.axes.index(axes)
    axes.grid(False)
    axes.invert_yaxis()
    axes.set_yticks(np.arange(len(rows)) + 0.5, picture_texts(rows, NAME))
    every = max(1, -(-len(columns) // 15))
    labelled = range(0, len(columns), every)
    axes.set_xticks([place + 0.5 for place in labelled], [picture_text(str(columns[place])) for place in labelled])
    axes.tick_params(length=0)
    if has_bar:
        tall = axes.figure.bbox.height / axes.figure.dpi / HEIGHT  # a bar is as long as its aspect lets it be
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=20 * max(1.0, 1.7 * tall))
        bar.set_label(picture_text(label), size=8)
        if is_light:
            turn_image(bar.ax)
    if is_light:
        mesh.set_gid(f"{LIGHT}-{number}")
    for (row, column), value in np.ndenumerate(grid.data):
        if written is not None and np.isfinite(value):
            dark = np.dot(mesh.to_rgba(value)[:3], (0.3, 0.59, 0.11)) < 0.5
            text = axes.text(column + 0.5, row + 0.5, written(float(value)), ha="center", va="center", fontsize=7,
                             color="#fefefe" if dark else "#111112")  # fmt: skip
            if is_light:
                text.set_gid(f"{LIGHT}-{number}-{row}-{column}")


def turn_image(axes: Axes) -> None:
    """Let a dark page turn the image in these axes around, as it is white at one end or in the middle."""
    axes.set_gid(f"{LIGHT}-image-{axes.figure.axes.index(axes)}")


def label_rounds(axes: Axes) -> None:
    """Whole numbers of rounds below."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def add_legend(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """The names below the panels, in as many columns as fit; a title says what they name."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=legend_columns(labels), title=title, title_fontsize=8
    )


def legend_columns(labels: Sequence[str]) -> int:
    """How many names fit beside each other.

    >>> legend_columns(["local", "fedavg"]), legend_columns(["fedlag(ditto(lam=0.5), k=1)"] * 9)
    (2, 2)
    """
    widest = max(map(len, labels), default=1)
    return max(1, min(len(labels), 72 // (widest + 7)))


def legend_height(methods: Sequence[str]) -> float:
    """The inches that a legend of methods takes."""
    labels = picture_texts(methods, LONG)
    return 0.17 * -(-len(labels) // legend_columns(labels))


def label_columns(axes: Axes, names: Sequence[str], width: int = NAME) -> None:
    """Every column of a heat map with its name, upright."""
    axes.set_xticks(np.arange(len(names)) + 0.5, picture_texts(names, width), rotation=90)
