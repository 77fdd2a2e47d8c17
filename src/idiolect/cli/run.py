"""The command `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.errors import InputError
from ..core.expressions import parse
from ..core.names import slug
from . import screen
from .completion import complete_method
from .folders import next_free
from .settings import JsonLines, Logs, Overrides, Quiet, Trust, gather_settings, with_settings


@with_settings()
def run(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[METHOD or CONFIG.yaml]",
            autocompletion=complete_method,
            help="A method, or a file of settings as 'name: value' lines; options below override them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for the results; else runs/METHOD-DATA-SEED, or the next free."),
    ] = None,
    override: Overrides = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            help="tuned: the learning rate and options that tuning found on clients that differ alike; or presets.yaml"
            " of a tuning.",
        ),
    ] = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    trust: Trust = False,
    settings: Any = None,
) -> None:
    """Train one federation with one method.

    The results go into a folder: the configuration, the metrics of every client and round, a summary, and the state
    from which an interrupted run is continued.

    [bold]Examples[/bold]
      idiolect run fedavg --rounds 20
      idiolect run 'fedprox(mu=0.1)' --partition dirichlet:0.1 --out runs/a
      idiolect run ditto -o method.lam=0.5 --clients 20 --participation 0.5
      idiolect run experiment.yaml --lr 0.01
      idiolect run ditto --partition dirichlet:0.1 --preset tuned
    """
    from .training import follow_run

    values = read_what(what, settings, trust, override)
    chosen = idiolect.runs.configure(values if preset is None else use_preset(values, preset), override)
    folder = out or free_folder(chosen)
    follow_run(
        lambda reporter: idiolect.run(**chosen.as_dict(), out=folder, reporter=reporter, on_interrupt="return"),
        folder,
        quiet,
        json_lines,
        log,
    )


def read_what(
    what: str | None, settings: Mapping[str, Any], trust: bool, override: Sequence[str] | None
) -> dict[str, Any]:
    """The settings of a run whose argument is a method, a file of settings, or missing."""
    if what is None or what.endswith((".yaml", ".yml")) or (Path(what).is_file() and not what.endswith(".py")):
        return gather_settings(None if what is None else Path(what), settings, trust, override or ())
    if settings.get("method", what) != what:
        raise InputError(f"the method is given twice, as {what} and as --method {settings['method']}; give it once")
    return {**settings, "method": what}


def use_preset(values: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """The settings with what a preset says of the method; a learning rate that is given stays."""
    from ..advice.presets import TUNED, apply_preset

    if preset.endswith((".yaml", ".yml")):
        taken = idiolect.tuning.use_presets([str(values.get("method", "fedavg"))], preset)
        ((method, lr),) = taken["rates"].items()
        screen.paragraph(f"{method} with lr={lr:g}, by {preset}", "dim")
        return {"lr": lr, **values, "method": method}
    if preset != TUNED:
        raise InputError(
            f"--preset {preset} is not allowed; it must be {TUNED} or a file .yaml of presets; those of a method:"
            " ditto(preset=...)"
        )
    found = apply_preset(**values)
    screen.paragraph(str(found), "dim")
    return {"lr": found.lr, **values, "method": found.method}


def free_folder(config: idiolect.Config) -> Path:
    """The next free name for a run's results."""
    return next_free(Path(f"runs/{slug(config.method)}-{slug(parse(config.data).name)}-{config.seed}"))
