"""The command `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import screen


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The metric to show[dim]; default the headline[/dim].")
    ] = None,
    every: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the curves once, and end.")] = False,
) -> None:
    """Show the curves of a run or a comparison while it goes on.

    The validation score and the training loss by round; for a comparison a line per method. Nothing is written, and
    the run is not disturbed. It ends when all runs are done, or with Ctrl-C; without a terminal after one look.

    [bold]Examples[/bold]
      idiolect watch runs/a
      idiolect watch results/x --every 10
      idiolect watch runs/a --metric loss --once
    """
    from ..report.terminal.watch import follow

    follow(folder, screen.OUT, every, once, metric)
