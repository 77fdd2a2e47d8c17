"""The command `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import idiolect

from ..core.errors import InputError, RunFolderError
from .settings import Jobs, JsonLines, Logs, On, Quiet, Trust


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Train a run further, to N rounds in all.")
    ] = None,
    jobs: Jobs = 1,
    on: On = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Go on with another engine, as in workers where a cluster is gone; a run."),
    ] = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    trust: Trust = False,
) -> None:
    """Continue a run or a comparison that was interrupted.

    The result is the same, to the bit, as without the interruption. Of something that is complete, the results are
    shown again. With --rounds a run is trained further, and ends as if it had been asked for as many rounds at once.

    [bold]Examples[/bold]
      idiolect resume runs/fedavg-digits-0
      idiolect resume runs/fedavg-digits-0 --rounds 200
      idiolect resume runs/big --engine workers
      idiolect resume results/x --jobs 2
    """
    from ..comparison.folder import SPEC
    from .training import follow_comparison, follow_run

    if (folder / SPEC).is_file() and rounds is not None:
        raise InputError(
            f"{folder} holds a comparison, whose runs all have the same rounds; leave --rounds out, or give the folder"
            " of a single run"
        )
    if (folder / SPEC).is_file():
        follow_comparison(
            lambda reporter: idiolect.comparison.resume_comparison(
                folder, jobs=jobs, on=on, reporter=reporter, trust=trust
            ),
            folder,
            quiet,
            json_lines,
            log,
        )
    elif folder.is_dir():
        follow_run(
            lambda reporter: idiolect.resume(
                folder, rounds=rounds, engine=engine, reporter=reporter, on_interrupt="return", trust=trust
            ),
            folder,
            quiet,
            json_lines,
            log,
        )
    else:
        raise RunFolderError(f"there is no folder {folder}; start a run with: idiolect run --out {folder}")
