"""What the commands that show finished runs share: their options, and what they say while they draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import screen

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


def say_left_out(note: str) -> None:
    """Say what was left out."""
    screen.paragraph(note, "yellow")


@contextmanager
def drawing(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being drawn."""
    if quiet:
        yield lambda _: None
        return
    with screen.doing("reading the runs") as say:
        yield lambda title: say(f"drawing: {title}")
