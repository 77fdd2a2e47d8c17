"""The command `run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.expressions import parse
from .folders import next_free
from .settings import ConfigFile, JsonLines, Logs, Overrides, Quiet, gather_settings, with_settings


@with_settings()
def run(
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for the results; else runs/METHOD-DATA-SEED, or the next free."),
    ] = None,
    override: Overrides = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    settings: Any = None,
) -> None:
    """Train one federation with one method.

    The results go into a folder: the configuration, the metrics of every client and round, a summary, and the state
    from which an interrupted run is continued.

    [bold]Examples[/bold]
      idiolect run --method fedavg --rounds 20
      idiolect run -m 'fedprox(mu=0.1)' --partition dirichlet:0.1 --out runs/a
      idiolect run -m ditto -o method.lam=0.5 --clients 20 --participation 0.5
      idiolect run experiment.yaml --lr 0.01
    """
    from .training import follow_run

    chosen = idiolect.runs.configure(gather_settings(config, settings), override)
    folder = out or free_folder(chosen)
    follow_run(lambda told: idiolect.run(**chosen.as_dict(), out=folder, reporter=told), folder, quiet, json_lines, log)


def free_folder(config: idiolect.Config) -> Path:
    """The next free name for a run's results."""
    from ..comparison.folder import slug

    return next_free(Path(f"runs/{slug(config.method)}-{slug(parse(config.data).name)}-{config.seed}"))
