"""What the commands that train share: progress while runs go on, results after them, and the way out on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.text import Text

from ..comparison import Comparison
from ..comparison.folder import SPEC
from ..contract import Method, methods
from ..core.names import visible
from ..report.loggers import Several, logger
from ..report.terminal.progress import reporter
from ..runs import Result
from ..runs.folder import CONFIG
from ..runs.progress import Reporter
from . import results, screen
from .screen import INTERRUPTED

FAILED = 1
NEEDS = {
    "public": "all clients and the server see the public data",
    "models": "clients may have different networks",
    "server models": "the server keeps the latest model of every client",
    "server training": "the server trains, too",
}


class Requirements(Reporter):
    """Says, when a run starts, what its method needs beyond parameters."""

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """The label of a run is its method."""
        super().start(label, rounds, done)
        for line in requirements(methods.build(label)):
            screen.ERR.print(Text(visible(line), style="dim"), soft_wrap=True)


def requirements(method: Method) -> list[str]:
    """What a method needs beyond parameters, in sentences."""
    lines = [f"{method.name}: {NEEDS[need]}" for need in method.needs.describe() if need in NEEDS]
    if method.needs.holdout:
        lines.append(f"{method.name}: {method.needs.holdout:.0%} of every client's training data are set aside for it")
    return lines


def make_reporter(quiet: bool, json_lines: bool = False, log: Sequence[str] | None = None) -> Reporter:
    """The reporter that a command's options ask for, with all that it logs to."""
    terminal = reporter(screen.ERR, quiet, sys.stdout if json_lines else None)
    return Several([terminal, *map(logger, log or ())])


@contextmanager
def interruptible(explain: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into an exit code and, if there is one, a sentence on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if message := explain():
            screen.say(message, "yellow")
        raise typer.Exit(INTERRUPTED) from None


def follow_run(
    start: Callable[[Reporter], Result],
    folder: Path,
    quiet: bool,
    json_lines: bool,
    log: Sequence[str] | None,
) -> None:
    """Start or continue a run, show how it goes on and what came of it. `start` returns the result also of a run that
    was interrupted."""
    announced, where = [] if quiet or json_lines else [Requirements()], screen.place(folder)

    def explain() -> str:
        known = (folder / CONFIG).is_file() and not json_lines
        return f"stopped at once; continue with: idiolect resume {where}" if known else ""

    with interruptible(explain), Several([*announced, make_reporter(quiet, json_lines, log)]) as reporters:
        result = start(reporters)
        summary, complete = result.summary, result.complete
        if json_lines and not complete:
            reporters.end(result.config.method, summary)
    result.store.close()
    if json_lines:
        raise typer.Exit(0 if complete else INTERRUPTED)
    results.show_result(summary)
    if not complete:
        screen.say(f"stopped after round {summary['rounds_done']}; continue with: idiolect resume {where}", "yellow")
        raise typer.Exit(INTERRUPTED)
    screen.say(f"results: {where}")


def follow_comparison(
    start: Callable[[Reporter], Comparison],
    folder: Path,
    quiet: bool,
    json_lines: bool = False,
    log: Sequence[str] | None = None,
    page: bool = True,
) -> Comparison:
    """Start or continue a comparison, show how it goes on, what came of it and, with `page`, how to get its report."""
    where = screen.place(folder)

    def explain() -> str:
        known = (folder / SPEC).is_file() and not json_lines
        return f"stopped; continue with: idiolect resume {where}" if known else ""

    with interruptible(explain), make_reporter(quiet, json_lines, log) as reporters:
        comparison = start(reporters)
    if not json_lines:
        results.show_comparison(comparison)
        screen.say(f"results: {where} (comparison.md, .csv, .json, and a folder for every run)")
        if page:
            screen.say(f"see it: idiolect report {where}")
    if comparison.failed:
        raise typer.Exit(FAILED)
    return comparison
