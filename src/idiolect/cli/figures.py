"""The command `figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import idiolect

from . import screen
from .drawing import Baseline, Folders, Target, drawing, say_left_out
from .settings import Quiet, Trust


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
    local_models: Annotated[
        bool,
        typer.Option(
            "--local-models",
            help="Also show how alike models are right after training, in the first and the selected round; trains"
            " every client for both.",
        ),
    ] = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Write every figure of a report as a file for a paper, and every table as CSV, Markdown and LaTeX.

    [bold]Examples[/bold]
      idiolect figures results/x --out figures --format pdf
      idiolect figures runs/a runs/b --format svg,png
      idiolect figures results/x --format png --local-models
    """
    wanted = [name.strip().lower() for name in formats.split(",") if name.strip()]
    with drawing(quiet) as watch:
        written = idiolect.report.write_figures(
            folders, out, wanted, baseline, target, watch, say_left_out, trust, local_models
        )
    screen.say(f"written: {len(written)} files in {screen.place(out)}")
