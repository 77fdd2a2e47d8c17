"""The command `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from . import screen


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The metric to show[dim]; default the headline[/dim].")
    ] = None,
    every: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the curves once, and end.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Show them in a browser on this machine, on a live page.")] = False,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Its port[dim]; default 8765, 0 is any[/dim].")
    ] = None,
) -> None:
    """Show the curves of a run or a comparison while it goes on.

    The validation score and the training loss by round; for a comparison a line per method. Nothing is written, and
    the run is not disturbed. It ends when all runs are done, or with Ctrl-C; without a terminal after one look.

    With --web a page at http://127.0.0.1:8765/ shows the runs, curves, clients and refused uploads of a run, of a
    comparison, or of all of them in a folder, until Ctrl-C. Only this machine can open it.

    [bold]Examples[/bold]
      idiolect watch runs/a
      idiolect watch results/x --every 10
      idiolect watch runs/a --metric loss --once
      idiolect watch results/x --web
    """
    if web:
        if once:
            raise InputError("--once and --web contradict each other; choose one of them")
        from ..report.live import PORT, serve

        serve(
            folder,
            PORT if port is None else port,
            every,
            metric,
            lambda url: screen.say(f"open {url} (Ctrl-C ends it)"),
        )
        return
    if port is not None:
        raise InputError("--port is for --web; give both or none")
    from ..report.terminal.watch import follow

    follow(folder, screen.OUT, every, once, metric)
