"""The command `advise`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import idiolect

from ..core.errors import InputError
from ..core.expressions import write
from . import screen
from .folders import settings_file
from .settings import LINEUP, Json, On, Overrides, Quiet, Trust, gather_settings, with_settings

if TYPE_CHECKING:
    from ..advice import Advice, Study
    from ..advice.race import Race, RaceSchedule


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
        str, typer.Option(metavar="gradients|rounds", help="What all methods get alike in the race.")
    ] = "gradients",
    budgets: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Shares of the model that clients can compute, in turn, as in 0.3,0.5,1."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the race.")] = False,
    on: On = None,
    override: Overrides = None,
    quiet: Quiet = False,
    as_json: Json = False,
    trust: Trust = False,
    settings: Any = None,
) -> None:
    """Say how the clients differ and which methods suit them, and verify it by a short race.

    Label skew, feature shift, concept shift and quantity skew are measured on training data, conflicts of updates on a
    few rounds of FedAvg. Rules turn the numbers into three methods, with reasons. These then race against one
    method of each other family, local, fedavg and finetune(fedavg) under an equal budget: after each rung the worse
    half drops out. Validation data decide; test data are not touched. The advice says when it is not sure.

    [bold]Examples[/bold]
      idiolect advise --data digits --partition dirichlet:0.1 --clients 20
      idiolect advise runs/a --no-race
      idiolect advise --race-rounds 60 --budget rounds --yes
      idiolect advise --budgets 0.3,0.5,1
    """
    values = gather_settings(settings_file(place), settings, trust, override or ())
    values = {name: value for name, value in values.items() if name not in LINEUP} | {"method": "fedavg"}
    shares = () if budgets is None else read_budgets(budgets)
    study = idiolect.advice.Study(idiolect.runs.configure(values, override), {}, race_rounds, budget, shares, on)
    advice = study.advice
    if not as_json:
        show_profile(study, advice)
    if race:
        if not as_json:
            show_schedule(study.schedule, study)
        if screen.OUT.is_terminal and sys.stdin.isatty() and not yes and not as_json:
            race = typer.confirm("Run the race?", default=True)
    if race:
        advice = run_race(study, quiet or as_json)
    if as_json:
        screen.show_json(advice.as_dict())
        return
    if advice.race is not None:
        show_race(advice.race, study)
    screen.paragraph(advice.sentence, "bold")
    screen.paragraph(f"to be sure: {follow_up(advice, study)}", "dim")


def read_budgets(text: str) -> tuple[float, ...]:
    """Shares of the model, split at commas.

    >>> read_budgets("0.5, 1")
    (0.5, 1.0)
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--budgets {text} is not allowed; give numbers split at commas, as in 0.3,0.5,1") from error


def run_race(study: Study, quiet: bool) -> Advice:
    """Run the race and show how it goes on."""
    from .training import interruptible, make_reporter

    with interruptible(lambda: "stopped; nothing of the race is kept"), make_reporter(quiet) as reporter:
        return study.run_race(reporter)


def show_profile(study: Study, advice: Advice) -> None:
    """What was measured, and what the rules make of it."""
    from ..advice.tables import findings_table, recommended_table

    data = study.plan.data
    screen.paragraph(f"{data.name}, {len(data)} clients, {data.partition} (partition {data.partition_hash})")
    screen.say()
    screen.show(findings_table(advice), whole=("", "value", "level", "some/strong"), text=True)
    if advice.conflicts:
        layers = ", ".join(f"{unit} {share:.2f}" for unit, share in advice.conflicts.items())
        screen.paragraph(f"conflicts by layer: {layers}", "dim")
        screen.say()
    screen.show(recommended_table(advice), whole=("recommended", "points"), text=True)
    for preset in advice.tuned.values():
        screen.paragraph(f"{preset}; idiolect run --preset tuned takes it", "dim")
    for method, why in advice.skipped.items():
        screen.paragraph(f"left out {method}: {why}", "yellow")


def show_schedule(schedule: RaceSchedule, study: Study) -> None:
    """The race as planned, and the time it will take."""
    from ..runs.progress import clock

    rows = [
        (
            contender.method,
            str(contender.rounds),
            f"{contender.cost.gradients:,}",
            f"{contender.cost.seconds:.3f}",
            f"{contender.cost.eval_seconds:.3f}",
        )
        for contender in schedule.contenders
    ]
    screen.show_table(("race", "rounds", "gradients/round", "s/round", "s/evaluation"), rows)
    counts = ", then ".join(map(str, schedule.counts))
    alike = "the same number of gradients" if schedule.budget == "gradients" else "the same rounds"
    screen.paragraph(
        f"{counts} methods, {alike} for all, judged by validation; {study.rounds} rounds of fedavg where a run has"
        f" {study.config.rounds}; about {clock(schedule.seconds)} on {schedule.engine}"
    )


def show_race(race: Race, study: Study) -> None:
    """How the race ended."""
    from ..advice.tables import race_table

    screen.say()
    screen.show(race_table(race))
    lower = "; lower is better" if race.direction == "lower" else ""
    screen.paragraph(
        f"Who ran more rungs stands higher; scores of different rungs are not comparable{lower}. One seed"
        f" ({study.config.seed}), so small differences mean nothing.",
        "dim",
    )


def follow_up(advice: Advice, study: Study) -> str:
    """The comparison with several seeds that settles it."""
    first = (
        [place.method for place in advice.race.places[:3]]
        if advice.race and advice.winner
        else [m.method for m in advice.recommended]
    )
    chosen = ", ".join(dict.fromkeys([*first, "fedavg" if study.try_build("fedavg") else "local"]))
    default = idiolect.Config().as_dict()
    differ = {k: v for k, v in study.config.as_dict().items() if v != default[k] and k not in ("method", "seed")}
    flags = "".join(f" --{name.replace('_', '-')}{as_argument(value)}" for name, value in differ.items())
    return f"idiolect compare --methods {shlex.quote(chosen)}{flags} --seeds 3"


def as_argument(setting: Any) -> str:
    """A setting as it is typed after its name.

    >>> as_argument("feature(kind=blur)"), as_argument((0.5, 0.25, 0.25)), as_argument(True)
    (" 'feature(kind=blur)'", " '[0.5, 0.25, 0.25]'", '')
    """
    return "" if setting is True else f" {shlex.quote(setting if isinstance(setting, str) else write(setting))}"
