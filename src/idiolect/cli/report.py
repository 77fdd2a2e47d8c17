"""The commands that show what came of runs: report and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..report import write_figures, write_report
from . import screen
from .settings import Quiet

Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or of comparisons, or folders of such.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD", help="What others are tested against[dim]; default the comparison's, else fedavg[/dim]."
    ),
]
Target = Annotated[
    float, typer.Option(metavar="SHARE", min=0.01, max=1.0, help="The share of the best score that curves mark.")
]


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="The page; an earlier report is replaced.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    target: Target = 0.9,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs: leaderboard, curves, clients, and what each method decided.

    The page is a single file that needs no network: it opens from the disk, on a phone and on paper. Runs that are not
    complete are left out and named; runs under different settings are refused.

    [bold]Examples[/bold]
      idiolect report results/x
      idiolect report runs/a runs/b --baseline local --out ab.html
    """
    with drawing(quiet) as watch:
        study = write_report(folders, out, baseline, target, watch)
    for note in study.notes:
        left_out(note)
    screen.say(f"written: {screen.place(out)}")


def figures(
    folders: Folders,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the files; others in it stay.")] = Path(
        "figures"
    ),
    formats: Annotated[
        str, typer.Option("--format", "-f", metavar="LIST", help="Formats of the figures: pdf, svg, png.")
    ] = "pdf",
    baseline: Baseline = None,
    target: Target = 0.9,
    quiet: Quiet = False,
) -> None:
    """Write every figure of a report as a file for a paper, and every table as CSV, Markdown and LaTeX.

    [bold]Examples[/bold]
      idiolect figures results/x --out figures --format pdf
      idiolect figures runs/a runs/b --format svg,png
    """
    wanted = [each.strip().lower() for each in formats.split(",") if each.strip()]
    with drawing(quiet) as watch:
        written = write_figures(folders, out, wanted, baseline, target, watch, left_out)
    screen.say(f"written: {len(written)} files in {screen.place(out)}")


def left_out(note: str) -> None:
    """Say what was left out."""
    screen.paragraph(note, "yellow")


@contextmanager
def drawing(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being drawn."""
    if quiet or not screen.ERR.is_terminal:
        yield lambda _: None
        return
    with screen.ERR.status("reading the runs") as status:
        yield lambda title: status.update(f"drawing: {escape(title)}")
