"""The command `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import idiolect

from ..core.errors import InputError, TrainingError
from . import screen
from .folders import next_free
from .settings import LINEUP, ConfigFile, On, Overrides, Quiet, Trust, gather_settings, with_settings, without_method

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
    stepwise: Annotated[
        bool,
        typer.Option(
            "--stepwise", help="Tune the options of --space one after another, all listed values; instead of --trials."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the tuning; else results/tuning, the next free one."),
    ] = None,
    on: On = None,
    override: Overrides = None,
    quiet: Quiet = False,
    trust: Trust = False,
    settings: Any = None,
) -> None:
    """Choose options and learning rate of each method by validation, with equally many trials for all.

    The first trial is the method as given, the others are proposed by Optuna. Numbers among the options are tuned, and
    the learning rate of each method; switches and variants only if --space names them. Every trial is recorded; called
    again with the same folder, the tuning goes on where it stopped. Test data are not touched.

    [bold]Examples[/bold]
      idiolect tune --methods 'fedavg, fedprox, ditto' --trials 20 --rounds 30 --out results/t
      idiolect tune -m 'fedprox, fedlag(ditto)' --space 'mu=0.001:1:log' --space 'lr=0.01:0.5:log'
      idiolect tune -m fedfac --stepwise --space layers=1,2 --space tau=0.25,0.5,0.75,inf --space kappa=0.75,0.85,0.95
      idiolect compare results/t/tuned.yaml --out results/x
    """
    from ..tuning.api import CHOSEN
    from .training import interruptible, make_reporter

    values = gather_settings(config, settings, trust, (methods, *(override or ())))
    lineup = {name: values.pop(name, None) for name in LINEUP}
    if not (chosen := methods or lineup["methods"]):
        raise InputError("no methods to tune; name some with --methods 'fedavg, fedprox, ditto'")
    values.pop("method", None)
    shared = without_method(idiolect.runs.configure(values, override))
    folder = out or next_free(Path("results/tuning"))
    where = screen.place(folder)

    def explain() -> str:
        return f"stopped; the trials so far are in {where}: the same command with --out {where} goes on"

    with interruptible(explain), make_reporter(quiet) as reporter:
        tuning = idiolect.tune(
            chosen, trials=trials, space=space or (), stepwise=stepwise, out=folder, on=on, reporter=reporter, **shared
        )
    show_tuning(tuning)
    if not tuning.comparison["methods"]:
        raise TrainingError(f"no trial has a score, so nothing was chosen; why is in {where}/trials.jsonl")
    screen.say(f"all trials: {where}/trials.jsonl; to compare: idiolect compare {where}/{CHOSEN} --seeds 3")


def show_tuning(tuning: Tuning) -> None:
    """What was chosen for each method, and which trials failed."""
    from ..tuning.tables import chosen_table, failed_lines

    screen.show(chosen_table(tuning))
    for line in failed_lines(tuning):
        screen.paragraph(line, "yellow")
