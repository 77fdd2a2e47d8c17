"""The command `reproduce`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import DataError, InputError
from ..core.options import did_you_mean
from . import screen
from .settings import Jobs, On, Quiet

if TYPE_CHECKING:
    from ..reproductions import Claim, State

ALL = "all"


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|all]", help="The claim, or all of them.")] = None,
    jobs: Jobs = 1,
    on: On = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two rounds and seeds: tests that it works; the numbers mean nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare what comes out with the committed result; nothing is written.")
    ] = False,
    retune: Annotated[
        bool,
        typer.Option(
            "--retune", help="Tune anew also where the committed result of another claim has what would be chosen."
        ),
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
    the ledger; with --check it is compared with the one that is there. A claim that takes over what the tuning of
    another one chose reads it from that one's committed result, where nothing has changed since. The federations of
    the grand table, in which all methods compete, are run in the same way.

    [bold]Examples[/bold]
      idiolect reproduce --list
      idiolect reproduce flayer-parts --jobs 2
      idiolect reproduce flayer-parts --check
      idiolect reproduce grand-mnist --jobs 2
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
    how = How(known, claims, cache, jobs, on, quick, check, quiet, None if retune or quick else claims, name == ALL)
    outcomes = [follow(claim, how) for claim in chosen]
    if not all(outcomes):
        raise typer.Exit(1)


@dataclass(frozen=True)
class How:
    """How claims are run: all claims by name, folders and options; `committed` is the folder whose results may
    stand for tunings, and with `go_on` data that are missing are no error."""

    known: dict[str, Claim]
    claims: Path
    cache: Path
    jobs: int
    on: str | None
    quick: bool
    check: bool
    quiet: bool
    committed: Path | None
    go_on: bool


def follow(claim: Claim, how: How) -> bool:
    """Run one claim, show what came out, and write or check it; whether all is well."""
    from ..reproductions.api import find_committed
    from ..reproductions.api import reproduce as carry_out
    from ..reproductions.files import result_path, write_result
    from ..reproductions.folders import cache_of
    from .training import interruptible, make_reporter

    screen.say(claim.name, "bold")
    if claim.not_runnable:
        screen.paragraph(f"not runnable here: {claim.not_runnable}")
        return True
    try:
        for other in find_committed(claim, how.known, how.cache, how.committed):
            screen.paragraph(f"tuned as in {other}, from its committed result; --retune makes its trials again")
        with interruptible(lambda: "stopped; the same command goes on"):
            result = carry_out(
                claim,
                how.known,
                cache=how.cache,
                jobs=how.jobs,
                on=how.on,
                quick=how.quick,
                make_reporter=partial(make_reporter, how.quiet),
                committed=how.committed,
            )
    except DataError as error:
        if not how.go_on:
            raise
        screen.paragraph(str(error), "yellow")
        return True
    show_result(result)
    path = result_path(cache_of(how.cache, True) if how.quick else how.claims, claim.name)
    if how.check and not how.quick:
        return show_check(result, path)
    write_result(result, path)
    screen.say(f"result: {screen.place(path)}" + " (quick: the numbers mean nothing)" * how.quick)
    return True


def show_result(result: dict[str, Any]) -> None:
    """The verdicts of a claim; of a federation of the grand table, who was best."""
    for name, reason in result.get("skipped", {}).items():
        screen.paragraph(f"{name} cannot run here: {reason}", "dim")
    for case in result["cases"]:
        for verdict in case["verdicts"]:
            where = f" ({case['case']})" if case["case"] else ""
            screen.paragraph(f"{verdict['verdict']}: {verdict['says']}{where} {verdict['words']}")
        if not case["verdicts"]:
            screen.paragraph("best: " + ", ".join(best_of(case)))


def best_of(case: dict[str, Any], most: int = 3) -> list[str]:
    """The best methods of a case, with their scores."""
    from ..reproductions.grand import order

    return [f"{name} {score:.4f}" for name, score in order(case)[:most]]


def show_check(result: dict[str, Any], path: Path) -> bool:
    """How a result compares with the committed one; whether it agrees."""
    from ..reproductions.check import DIFFERENT, check_result
    from ..reproductions.files import read_result

    committed = read_result(path)
    if committed is None:
        raise InputError(f"there is no committed result to compare with: {path} is missing")
    found = check_result(result, committed)
    machine = (
        "the same kind of machine" if found.is_same_machine else "another machine, or a version with other numbers"
    )
    screen.paragraph(f"{found.kind} ({machine})", "red" if found.kind == DIFFERENT else "green")
    for line in found.lines:
        screen.paragraph(f"  {line}")
    return found.kind != DIFFERENT


def list_claims(known: dict[str, Claim], claims: Path, cache: Path, quick: bool) -> None:
    """All claims, how far each is, and the time that it took and has left."""
    from ..reproductions import find_state
    from ..reproductions.files import read_result, result_path

    rows, spent, total = [], 0.0, 0.0
    for name, claim in known.items():
        where = f"{claim.paper}, {claim.where}"
        if claim.not_runnable:
            rows.append((name, where, "not runnable here", "", ""))
            continue
        state = find_state(claim, known, cache, quick, None if quick else claims)
        committed = read_result(result_path(claims, name)) is not None and not quick
        words = "committed" if committed else "done" if state.is_done else f"{state.done} of {state.total}"
        left = math.nan if quick else estimate(claim, state)
        rest = 0.0 if committed else left
        rows.append((name, where, words, minutes(state.seconds), "" if committed else minutes(left)))
        total += 0.0 if math.isnan(rest) else rest
        spent += state.seconds
    rows.append(("all", "", "", minutes(spent), minutes(total)))
    heads = ("claim", "paper", "state", "minutes", "minutes left")
    screen.show_table(heads, rows, text=True, whole=("claim", "state", "minutes", "minutes left"))
    screen.paragraph("minutes of one core; of a claim that has not begun, the estimate in its file", "dim")


def estimate(claim: Claim, state: State) -> float:
    """The seconds that a claim has left: as those so far say, and before the first as its file says."""
    return 60 * claim.minutes if math.isnan(state.seconds_left) else state.seconds_left


def minutes(seconds: float) -> str:
    """Seconds as minutes; nothing where they are not known."""
    return "" if math.isnan(seconds) else f"{seconds / 60:,.0f}"
