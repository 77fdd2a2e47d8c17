"""What the commands show: consoles, tables, one way to write each kind of thing."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..comparison.leaderboard import Comparison
from ..comparison.tables import footnotes, leaderboard_tables, protocol_lines
from ..core.tables import formatter, label

OUT = Console(highlight=False)
ERR = Console(highlight=False, stderr=True)
WIDE = 160
"""Columns where there is no terminal to say how many there are."""


def prepare() -> None:
    """Wide tables where there is no terminal, and warnings as one yellow line."""
    for console in (OUT, ERR):
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDE
    log = logging.getLogger("idiolect")
    if not any(isinstance(each, Warn) for each in log.handlers):
        log.addHandler(Warn())
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)


class Warn(logging.Handler):
    """Writes what the library logs above the progress bars."""

    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """One line on standard error."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if os.getpid() == self.process:
            ERR.print(Text(text, style="yellow"), soft_wrap=True)
        else:  # in a forked process the console's lock may be held for ever
            os.write(2, f"{text}\n".encode())


def complain(text: str) -> None:
    """An error, in red, on standard error."""
    ERR.print(Text(f"error: {text}", style="red"), soft_wrap=True)


def say(text: str = "", style: str = "") -> None:
    """A line of plain text on standard output, broken only by the terminal."""
    OUT.print(Text(text, style=style), soft_wrap=True)


def paragraph(text: str, style: str = "", indent: int = 2) -> None:
    """Text that is wrapped between words, with later lines indented."""
    for number, line in enumerate(Text(text, style=style).wrap(OUT, max(20, OUT.width - indent))):
        line.rstrip()
        OUT.print(Text(" " * indent * bool(number)) + line, soft_wrap=True)


def prose(text: str) -> None:
    """Paragraphs, wrapped between words; lines that are indented stay lines."""
    for line in text.splitlines():
        if line.startswith(" "):
            say(line, "cyan")
        else:
            OUT.print(Text(line))


def show_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    whole: Sequence[str] = (),
    text: bool = False,
) -> None:
    """A table. The first column is a name; the others are numbers, which are never broken, or `text`, of which only
    the columns in `whole` are never broken."""
    if title:
        say(title, "bold")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        number = place > 0 and not text
        table.add_column(
            head,
            justify="right" if number else "left",
            no_wrap=number or head in whole,
            overflow="fold",
            style="bold" if place == 0 else "",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    OUT.print(table)
    say()


def show_comparison(comparison: Comparison) -> None:
    """The protocol, the leaderboard and what its marks mean."""
    for line in protocol_lines(comparison):
        paragraph(line, "dim")
    say()
    for table in leaderboard_tables(comparison):
        short = table.shorten()
        heads = [column.head for column in short.columns]
        show_table(heads, [[cell.text for cell in row] for row in short.rows], title=table.title)
    for line in footnotes(comparison):
        paragraph(line, "dim")


def show_result(summary: Mapping[str, Any]) -> None:
    """The scores and the cost of one run."""
    metric, partition = summary["metric"], summary["partition"]
    show = formatter(metric)
    paragraph(
        f"{summary['method']} on {summary['data']}, {partition['clients']} clients, {partition['name']}"
        f" (partition {partition['hash']}), seed {summary['seed']},"
        f" {summary['rounds_done']} of {summary['rounds']} rounds"
    )
    keys = ("weighted", "mean", "std", "bottom_decile", "worst")
    how = "no validation data: the last" if summary["selection"] == "last round" else "by validation"
    names = {"selected": f"selected ({how})", "last": "last", "best": "best (by test, optimistic)"}
    points = {
        label(metric): metric,
        "before adaptation": "before_adaptation",
        "right after local training": "after_local",
        "unseen clients": "unseen",
    }
    for title, key in points.items():
        if block := summary.get(key):
            rows = [(names[n], str(each["round"]), *(show(each[k]) for k in keys)) for n, each in block.items()]
            heads = ("round of", "round", "weighted", "mean", "std", "bottom decile", "worst")
            show_table(heads, rows, title=title)
    paragraph(
        f"{summary['bytes_up'] / 1e6:,.1f} MB up, {summary['bytes_down'] / 1e6:,.1f} MB down,"
        f" {summary['steps']:,} local steps, {summary['seconds']:,.1f} s"
    )
    if summary["refused"]:
        paragraph(f"{summary['refused']} uploads were left out because they were not finite.", "yellow")


def place(folder: Path) -> str:
    """A folder as the user would type it."""
    try:
        return str(folder.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
