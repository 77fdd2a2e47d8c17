"""The command `reproduce`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import DataError, InputError
from ..core.options import did_you_mean
from . import screen
from .settings import Jobs, Quiet

if TYPE_CHECKING:
    from ..reproductions import Claim

ALL = "all"


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|all]", help="The claim, or all of them.")] = None,
    jobs: Jobs = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two rounds and seeds: tests that it works; the numbers mean nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare what comes out with the committed result; nothing is written.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show all claims, how far they are, and their time.")] = False,
    claims: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the claims' files.")] = Path(
        "reproductions"
    ),
    cache: Annotated[Path, typer.Option(metavar="DIR", help="The folder of runs and tunings, which are kept.")] = Path(
        "results/reproductions"
    ),
    quiet: Quiet = False,
) -> None:
    """Run a claim of a paper again: the same trials for every method, then five seeds and a verdict.

    A claim is a file of the folder reproductions: the paper's numbers, the setting, and the rule of the verdict. Called
    again, it goes on where it stopped. The result is written to reproductions/results, from which make pages writes
    the ledger; with --check it is compared with the one that is there.

    [bold]Examples[/bold]
      idiolect reproduce --list
      idiolect reproduce flayer-parts --jobs 2
      idiolect reproduce flayer-parts --check
      idiolect reproduce all --quick
    """
    from ..reproductions import read_claims

    known = read_claims(claims)
    if listing:
        list_claims(known, claims, cache, quick)
        return
    if name is None:
        raise InputError("which claim? Name one, or all; idiolect reproduce --list shows them")
    if name != ALL and name not in known:
        raise InputError(
            f"there is no claim {name!r}.{did_you_mean(name, known)} idiolect reproduce --list shows them."
        )
    chosen = list(known.values()) if name == ALL else [known[name]]
    outcomes = [follow(claim, known, claims, cache, jobs, quick, check, quiet, name == ALL) for claim in chosen]
    if not all(outcomes):
        raise typer.Exit(1)


def follow(
    claim: Claim,
    known: dict[str, Claim],
    claims: Path,
    cache: Path,
    jobs: int,
    quick: bool,
    check: bool,
    quiet: bool,
    go_on: bool,
) -> bool:
    """Run one claim, show what came out, and write or check it; whether all is well. With `go_on`, data that are
    missing are no error."""
    from ..reproductions.api import reproduce as carry_out
    from ..reproductions.folders import cache_of
    from ..reproductions.results import result_path, write_result
    from .training import interruptible, make_reporter

    screen.say(claim.name, "bold")
    if claim.not_runnable:
        screen.paragraph(f"not runnable here: {claim.not_runnable}")
        return True
    try:
        with interruptible(lambda: "stopped; the same command goes on"):
            reporters = partial(make_reporter, quiet)
            result = carry_out(claim, known, cache=cache, jobs=jobs, quick=quick, make_reporter=reporters)
    except DataError as error:
        if not go_on:
            raise
        screen.paragraph(str(error), "yellow")
        return True
    show_result(result)
    path = result_path(cache_of(cache, True) if quick else claims, claim.name)
    if check and not quick:
        return show_check(result, path)
    write_result(result, path)
    screen.say(f"result: {screen.place(path)}" + " (quick: the numbers mean nothing)" * quick)
    return True


def show_result(result: dict[str, Any]) -> None:
    """The verdicts of a claim."""
    for case in result["cases"]:
        for verdict in case["verdicts"]:
            where = f" ({case['case']})" if case["case"] else ""
            screen.paragraph(f"{verdict['verdict']}: {verdict['says']}{where} {verdict['words']}")


def show_check(result: dict[str, Any], path: Path) -> bool:
    """How a result compares with the committed one; whether it agrees."""
    from ..reproductions.check import DIFFERENT, check_result
    from ..reproductions.results import read_result

    committed = read_result(path)
    if committed is None:
        raise InputError(f"there is no committed result to compare with: {path} is missing")
    found = check_result(result, committed)
    machine = "the same version on the same kind of machine" if found.is_same_machine else "another version or machine"
    screen.paragraph(f"{found.kind} ({machine})", "red" if found.kind == DIFFERENT else "green")
    for line in found.lines:
        screen.paragraph(f"  {line}")
    return found.kind != DIFFERENT


def list_claims(known: dict[str, Claim], claims: Path, cache: Path, quick: bool) -> None:
    """All claims, how far each is, and the time that it took and has left."""
    from ..reproductions import find_state
    from ..reproductions.results import read_result, result_path

    rows, spent, rest = [], 0.0, 0.0
    for name, claim in known.items():
        if claim.not_runnable:
            rows.append((name, f"{claim.paper}, {claim.where}", "not runnable here", "", ""))
            continue
        state = find_state(claim, known, cache, quick)
        committed = read_result(result_path(claims, name)) is not None and not quick
        words = "committed" if committed else "done" if state.is_done else f"{state.done} of {state.total}"
        rows.append((name, f"{claim.paper}, {claim.where}", words, minutes(state.seconds), minutes(state.seconds_left)))
        spent += state.seconds
        rest += 0 if math.isnan(state.seconds_left) else state.seconds_left
    rows.append(("all", "", "", minutes(spent), minutes(rest)))
    heads = ("claim", "paper", "state", "minutes", "minutes left")
    screen.show_table(heads, rows, text=True, whole=("claim", "state", "minutes", "minutes left"))


def minutes(seconds: float) -> str:
    """Seconds as minutes; nothing where they are not known."""
    return "" if math.isnan(seconds) else f"{seconds / 60:,.0f}"
