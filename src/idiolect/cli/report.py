"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import idiolect

from . import screen
from .drawing import Baseline, Folders, Target, drawing, say_left_out
from .settings import Quiet, Trust


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="The page; an earlier report is replaced.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    target: Target = 0.9,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Write one page about runs: leaderboard, curves, clients, and what each method decided.

    The page is a single file that needs no network: it opens from the disk, on a phone and on paper. Runs that are not
    complete are left out and named; runs under different settings are refused.

    [bold]Examples[/bold]
      idiolect report results/x
      idiolect report runs/a runs/b --baseline local --out ab.html
    """
    with drawing(quiet) as watch:
        study = idiolect.report.write_report(folders, out, baseline, target, watch, trust)
    for note in study.notes:
        say_left_out(note)
    screen.say(f"written: {screen.place(out)}")
