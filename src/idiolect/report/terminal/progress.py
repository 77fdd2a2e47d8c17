"""How runs go on, said while they do: bars on a terminal, a few plain lines elsewhere, or nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ...comparison.tables import verdict
from ...core.files import finite_or_null
from ...core.names import shorten, visible
from ...runs.progress import Reporter, clock
from ...runs.round_loop import Progress as Round

LINES = 20
SECONDS = 5
FACTS, CLIENTS = 70, 12
"""The columns that a line needs beside the label, with a short bar; and how many of them the number of clients."""


class Plain(Reporter):
    """At most about twenty lines for a run, one line per run for a comparison."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console, self.said = console, 0.0

    def say(self, text: str) -> None:
        """One line, never wrapped."""
        self.console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def reading(self, what: str, done: int, total: int) -> None:
        """Say at most every few seconds how far it is, and when it is done, where that is known."""
        if total > 1 and (done == total or time.monotonic() - self.said > SECONDS):
            self.said = time.monotonic()
            self.say(f"{what}: {done:,} of {total:,}")

    def step(self, label: str, round: Round) -> None:
        """Say every so many rounds how a single run goes on."""
        super().step(label, round)
        done, rounds = round.round + 1, round.rounds
        if self.runs == 1 and done > 0 and (done == rounds or done % math.ceil(rounds / LINES) == 0):
            meter = self.meters[label]
            self.say(f"round {done}/{rounds}  {meter.facts()}  {clock(meter.left)} left")

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Say how a run of a comparison ended."""
        super().end(label, summary)
        if self.runs > 1:
            self.say(f"{self.runs_done}/{self.runs}  {label}  {verdict(summary)}  {clock(self.left)} left")


class _Left(ProgressColumn):
    """The time left, which the reporter knows better than a bar does."""

    def render(self, task: Task) -> Text:
        return Text(f"{clock(task.fields['left'])} left", style="progress.remaining")


@dataclass(frozen=True)
class _Narrower:
    """Something that leaves two columns free: a terminal writes ^C there, and a full line would break."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.content, options.update(width=options.max_width - 2))


class _Bars(Progress):
    """Bars that Ctrl-C does not break."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from map(_Narrower, super().get_renderables())


class Live(Reporter):
    """A line with a bar for every run that is under way and, for a comparison, one for all of them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.bars = _Bars(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}", style="progress.download", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
            _Left(table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
            redirect_stdout=False,  # all that is printed meanwhile goes through the console anyway
            redirect_stderr=False,
        )
        self.tasks: dict[str, TaskID] = {}
        self.overall: TaskID | None = None
        self.reads: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state of the bars on the screen."""
        self.bars.stop()

    def reading(self, what: str, done: int, total: int) -> None:
        """Show a bar until all is read; one that moves to and fro where it is not known how far it is."""
        if done == total:
            if what in self.reads:
                self.bars.remove_task(self.reads.pop(what))
            return
        if what not in self.reads:
            known, count = (total, f"{done:,}/{total:,}") if total > 1 else (None, "")
            self.reads[what] = self.bars.add_task(visible(what), total=known, count=count, facts="", left=math.nan)
        if total > 1:
            self.bars.update(self.reads[what], completed=done, count=f"{done:,}/{total:,}")

    def begin(self, runs: int, rounds: int) -> None:
        """Show a bar for all runs."""
        super().begin(runs, rounds)
        if self.overall is not None:
            self.bars.remove_task(self.overall)
            self.overall = None
        if runs > 1:
            self.overall = self.bars.add_task("all runs", total=rounds, count=f"0/{runs}", facts="", left=math.nan)

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """Show a bar for this run."""
        super().start(label, rounds, done)
        done, room = max(0, done), self.bars.console.width - FACTS + CLIENTS * (not self.says_clients)
        name = shorten_label(visible(label), room)
        self.tasks[label] = self.bars.add_task(
            name, total=rounds, completed=done, count=f"{done}/{rounds}", facts="", left=math.nan
        )
        self._update_overall()

    def step(self, label: str, round: Round) -> None:
        """Move the bars."""
        super().step(label, round)
        meter = self.meters[label]
        done = max(0, meter.done)
        facts = meter.facts(self.says_clients)
        self.bars.update(
            self.tasks[label], completed=done, count=f"{done}/{meter.rounds}", facts=facts, left=meter.left
        )
        self._update_overall()

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Take the run's bar away; that of a single run stays."""
        super().end(label, summary)
        if self.overall is not None:
            self.bars.remove_task(self.tasks.pop(label))
        self._update_overall()

    @property
    def says_clients(self) -> bool:
        """On a narrow terminal the runs of a comparison leave out the number of clients, which they share."""
        return self.runs == 1 or self.bars.console.width >= 100

    def _update_overall(self) -> None:
        if self.overall is not None:
            count = f"{self.runs_done}/{self.runs}"
            self.bars.update(self.overall, total=self.rounds, completed=self.rounds_done, count=count, left=self.left)


def shorten_label(label: str, width: int) -> str:
    """A label that leaves room for the rest of the line; the seed at its end, if there is one, stays.

    >>> shorten_label("finetune(fedlag(ditto(lam=0.5))) seed 0", 24), shorten_label("finetune(fedlag(ditto))", 12)
    ('finetune(fedlag(… seed 0', 'finetune(fe…')
    """
    width = max(width, 12)
    name, _, seed = label.rpartition(" seed ")
    return shorten(name, width - len(f" seed {seed}")) + f" seed {seed}" if name else shorten(label, width)


class JsonLines(Reporter):
    """Everything as one JSON object per line, for other programs: `start`, `round` and `end` of every run."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self.file = file

    def write(self, event: str, label: str, **facts: Any) -> None:
        """One line; numbers that JSON lacks become null."""
        print(json.dumps({"event": event, "run": label, **finite_or_null(facts)}), file=self.file, flush=True)

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """A run starts."""
        super().start(label, rounds, done)
        self.write("start", label, rounds=rounds, done=max(0, done))

    def step(self, label: str, round: Round) -> None:
        """A run has done a round; during set-up the number is 0 or less."""
        super().step(label, round)
        self.write("round", label, **{**asdict(round), "round": round.round + 1}, left=self.meters[label].left)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """A run is done."""
        super().end(label, summary)
        self.write("end", label, summary=dict(summary))


def reporter(console: Console, quiet: bool = False, json_lines: TextIO | None = None) -> Reporter:
    """The reporter that suits the console: bars on a terminal, else plain lines; nothing if quiet; or JSON lines."""
    if json_lines is not None:
        return JsonLines(json_lines)
    return Reporter() if quiet else Live(console) if console.is_terminal else Plain(console)
