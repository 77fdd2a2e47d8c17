"""The command `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import idiolect

from ..core.errors import InputError
from ..core.tables import formatter
from . import screen
from .folders import next_free
from .settings import LINEUP, ConfigFile, Overrides, Quiet, gather_settings, with_settings, without_method

if TYPE_CHECKING:
    from ..tuning import Tuning


@with_settings(without=("method",))
def tune(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", metavar="LIST", help="Expressions, split at commas; what they set stays."),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, metavar="N", help="Trials for each method.")] = 10,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH[:log]",
            help="What may be tried, instead of what the ranges of options suggest; also METHOD.NAME=..., NAME=A,B,C.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the tuning; else results/tuning, the next free one."),
    ] = None,
    override: Overrides = None,
    quiet: Quiet = False,
    settings: Any = None,
) -> None:
    """Choose options and learning rate of each method by validation, with equally many trials for all.

    The first trial is the method as given, the others are proposed by Optuna. Numbers among the options are tuned, and
    the learning rate of each method; switches and variants only if --space names them. Every trial is recorded; called
    again with the same folder, the tuning goes on where it stopped. Test data are not touched.

    [bold]Examples[/bold]
      idiolect tune --methods 'fedavg, fedprox, ditto' --trials 20 --rounds 30 --out results/t
      idiolect tune -m 'fedprox, fedlag(ditto)' --space 'mu=0.001:1:log' --space 'lr=0.01:0.5:log'
      idiolect compare results/t/tuned.yaml --out results/x
    """
    from ..tuning.api import CHOSEN
    from .training import interruptible, make_reporter

    given = gather_settings(config, settings)
    lineup = {name: given.pop(name, None) for name in LINEUP}
    if not (chosen := methods or lineup["methods"]):
        raise InputError("no methods to tune; name some with --methods 'fedavg, fedprox, ditto'")
    given.pop("method", None)
    shared = without_method(idiolect.runs.configure(given, override))
    folder = out or next_free(Path("results/tuning"))
    where = screen.place(folder)

    def explain() -> str:
        return f"stopped; the trials so far are in {where}: the same command with --out {where} goes on"

    with interruptible(explain), make_reporter(quiet) as told:
        tuning = idiolect.tune(chosen, trials=trials, space=space or (), out=folder, reporter=told, **shared)
    show_tuning(tuning)
    screen.say(f"all trials: {where}/trials.jsonl; to compare: idiolect compare {where}/{CHOSEN} --seeds 3")


def show_tuning(tuning: Tuning) -> None:
    """What was chosen for each method, and by how many trials."""
    show = formatter(tuning.metric)
    unit = " (%)" if tuning.metric == "accuracy" else ""
    rows = [
        (each.expression, f"{each.lr:g}", show(each.before), show(each.score), trials_text(each.trials, each.failed))
        for each in tuning.methods
    ]
    heads = ("chosen", "lr", "as given", "tuned", "trials")
    screen.show_table(heads, rows, title=f"validation {tuning.metric}{unit}")
    for each in tuning.trials:
        if each.error:
            screen.paragraph(f"{each.expression}, lr {each.lr:g}, failed: {each.error}", "yellow")


def trials_text(trials: int, failed: int) -> str:
    """How many trials there were.

    >>> trials_text(10, 0), trials_text(10, 2)
    ('10', '10 (2 failed)')
    """
    return f"{trials} ({failed} failed)" if failed else str(trials)
