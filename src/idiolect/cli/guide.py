"""The commands that guide: advise, tune, watch."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..advice import Advice, Study
from ..advice.race import BUDGETS, Race, RaceSchedule
from ..comparison.folder import SPEC
from ..core.errors import InputError, RunFolderError
from ..core.expressions import write
from ..core.tables import shower
from ..report.terminal import reporter
from ..report.watch import follow
from ..runs.progress import clock
from ..runs.settings import configure
from ..tuning import Tuning
from ..tuning import tune as run_tuning
from ..tuning.api import CHOSEN
from . import screen
from .catalogue import finite
from .settings import ConfigFile, Json, Overrides, Quiet, gathered, with_settings
from .train import INTERRUPTED, next_free

LINEUP = ("methods", "seeds", "baseline", "skipped", "rates")
"""What a comparison's file says beside settings."""


@with_settings(without=("method",))
def advise(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.yaml|DIR]", help="Settings, or the folder of a run or a comparison."),
    ] = None,
    race: Annotated[bool, typer.Option("--race/--no-race", help="Verify the recommendation by a race.")] = True,
    race_rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="FedAvg's rounds in the race[dim]; default --rounds, at most 24[/dim]."),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="|".join(BUDGETS), help="What all methods get alike in the race.")
    ] = "steps",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the race.")] = False,
    override: Overrides = None,
    quiet: Quiet = False,
    as_json: Json = False,
    settings: Any = None,
) -> None:
    """Say how the clients differ and which methods suit them, and verify it by a short race.

    Label skew, feature shift, concept shift and quantity skew are measured on training data, conflicts of updates on a
    few rounds of FedAvg. Rules turn the numbers into three methods, with reasons. These then race against local, fedavg
    and finetune(fedavg) under an equal budget: after each rung the worse half drops out. Validation data decide; test
    data are not touched.

    [bold]Examples[/bold]
      idiolect advise --data digits --partition dirichlet:0.1 --clients 20
      idiolect advise runs/a --no-race
      idiolect advise --race-rounds 60 --budget rounds --yes
    """
    given = {name: each for name, each in gathered(settings_file(place), settings).items() if name not in LINEUP}
    study = Study(configure({**given, "method": "fedavg"}, override), {}, race_rounds, budget)
    advice = study.advice
    if not as_json:
        show_profile(study, advice)
    if race:
        if not as_json:
            show_course(study.schedule, study)
        if screen.OUT.is_terminal and sys.stdin.isatty() and not yes and not as_json:
            race = typer.confirm("Run the race?", default=True)
    if race:
        advice = raced(study, quiet or as_json)
    if as_json:
        screen.OUT.print_json(json.dumps(finite(advice.as_dict())))
        return
    if advice.race is not None:
        show_race(advice.race, study)
    screen.paragraph(advice.sentence, "bold")
    screen.paragraph(f"to be sure: {follow_up(advice, study)}", "dim")


def settings_file(place: Path | None) -> Path | None:
    """The file of settings that a path names: itself, or that of a run or comparison."""
    if place is None or not place.is_dir():
        return place
    for name in ("config.yaml", SPEC):
        if (place / name).is_file():
            return place / name
    raise RunFolderError(f"{place} holds no run and no comparison; give a folder that does, or a file of settings")


def raced(study: Study, quiet: bool) -> Advice:
    """Run the race and show how it goes on."""
    try:
        with reporter(screen.ERR, quiet) as told:
            return study.run_race(told)
    except KeyboardInterrupt:
        screen.say("stopped; nothing of the race is kept", "yellow")
        raise typer.Exit(INTERRUPTED) from None


def show_profile(study: Study, advice: Advice) -> None:
    """What was measured, and what the rules make of it."""
    data = study.plan.data
    screen.paragraph(f"{data.name}, {len(data)} clients, {data.partition} (partition {data.partition_hash})")
    screen.say()
    rows = [
        (
            each.scale.name,
            number(each.value),
            each.level,
            f"{each.scale.some:g}/{each.scale.strong:g}",
            each.scale.meaning,
        )
        for each in advice.findings
    ]
    heads = ("", "value", "level", "some/strong", "what the value is")
    screen.show_table(heads, rows, whole=heads[:-1], text=True)
    if advice.conflicts:
        layers = ", ".join(f"{unit} {share:.2f}" for unit, share in advice.conflicts.items())
        screen.paragraph(f"conflicts by layer: {layers}", "dim")
        screen.say()
    recommended = [(each.method, str(each.points), each.reason) for each in advice.recommended]
    screen.show_table(("recommended", "points", "why"), recommended, whole=("recommended", "points"), text=True)
    for method, why in advice.skipped.items():
        screen.paragraph(f"left out {method}: {why}", "yellow")


def number(value: float) -> str:
    """A measured number as tables show it.

    >>> number(0.64567), number(1797.0), number(math.nan)
    ('0.646', '1797', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value == round(value) and value >= 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def show_course(course: RaceSchedule, study: Study) -> None:
    """The race as planned, and the time it will take."""
    rows = [
        (each.method, str(each.rounds), f"{each.steps:,}", f"{each.seconds:.3f}", f"{each.eval_seconds:.3f}")
        for each in course.contenders
    ]
    screen.show_table(("race", "rounds", "steps/round", "s/round", "s/evaluation"), rows)
    counts = ", then ".join(map(str, course.counts))
    alike = "the same local steps" if course.budget == "steps" else "the same rounds"
    screen.paragraph(
        f"{counts} methods, {alike} for all, judged by validation; {study.rounds} rounds of fedavg where a run has"
        f" {study.config.rounds}; about {clock(course.seconds)} on {course.engine}"
    )


def show_race(race: Race, study: Study) -> None:
    """How the race ended."""
    show = shower(race.metric)
    unit = " (%)" if race.metric == "accuracy" else ""
    rows = [
        (each.method, show(each.score), str(each.rung + 1), str(each.rounds), f"{each.steps:,}", f"{each.seconds:.1f}")
        for each in race.places
    ]
    screen.say()
    screen.show_table(("method", f"validation {race.metric}{unit}", "rungs", "rounds", "steps", "s"), rows)
    lower = "; lower is better" if race.direction == "lower" else ""
    screen.paragraph(
        f"Who ran more rungs stands higher; scores of different rungs are not comparable{lower}. One seed"
        f" ({study.config.seed}), so small differences mean nothing.",
        "dim",
    )


def follow_up(advice: Advice, study: Study) -> str:
    """The comparison with several seeds that settles it."""
    first = [each.method for each in advice.race.places[:3]] if advice.race else [m.method for m in advice.recommended]
    chosen = ", ".join(dict.fromkeys([*first, "fedavg"]))
    default = configure().as_dict()
    differ = {k: v for k, v in study.config.as_dict().items() if v != default[k] and k not in ("method", "seed")}
    flags = "".join(f" --{name.replace('_', '-')}{typed(each)}" for name, each in differ.items())
    return f"idiolect compare --methods {shlex.quote(chosen)}{flags} --seeds 3"


def typed(given: Any) -> str:
    """A setting as it is typed after its name.

    >>> typed("feature(kind=blur)"), typed((0.5, 0.25, 0.25)), typed(True)
    (" 'feature(kind=blur)'", " '[0.5, 0.25, 0.25]'", '')
    """
    return "" if given is True else f" {shlex.quote(given if isinstance(given, str) else write(given))}"


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
    given = gathered(config, settings)
    held = {name: given.pop(name, None) for name in LINEUP}
    chosen = methods or held["methods"]
    if not chosen:
        raise InputError("no methods to tune; name some with --methods 'fedavg, fedprox, ditto'")
    known = configure({name: each for name, each in given.items() if name != "method"}, override).as_dict()
    folder = out or next_free(Path("results/tuning"))
    where = screen.place(folder)
    try:
        with reporter(screen.ERR, quiet) as told:
            wanted = {name: each for name, each in known.items() if name != "method"}
            tuning = run_tuning(chosen, trials=trials, space=space or (), out=folder, reporter=told, **wanted)
    except KeyboardInterrupt:
        screen.say(f"stopped; the trials so far are in {where}: the same command with --out {where} goes on", "yellow")
        raise typer.Exit(INTERRUPTED) from None
    show_tuning(tuning)
    screen.say(f"all trials: {where}/trials.jsonl; to compare: idiolect compare {where}/{CHOSEN} --seeds 3")


def show_tuning(tuning: Tuning) -> None:
    """What was chosen for each method, and by how many trials."""
    show = shower(tuning.metric)
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
    follow(folder, screen.OUT, every, once, metric)
