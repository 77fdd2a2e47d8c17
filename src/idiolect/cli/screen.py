"""What the commands write on: consoles, with one way to show lines, paragraphs, tables and JSON."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..core.names import visible
from ..core.tables import Table as Written

OUT = Console(highlight=False)
ERR = Console(highlight=False, stderr=True)
INTERRUPTED = 130
"""The exit code of a command that was interrupted."""
WIDE = 160
"""Columns where there is no terminal to say how many there are."""


def prepare() -> None:
    """Wide tables where there is no terminal, and warnings as one yellow line."""
    for console in (OUT, ERR):
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDE
    log = logging.getLogger("idiolect")
    if not any(isinstance(handler, Warn) for handler in log.handlers):
        log.addHandler(Warn())
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)


class Warn(logging.Handler):
    """Writes what is logged above the progress bars."""

    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """One line on standard error."""
        text = visible(f"{record.levelname.lower()}: {record.getMessage()}", lines=True)
        if os.getpid() == self.process:
            ERR.print(Text(text, style="yellow"), soft_wrap=not ERR.is_terminal)
        else:  # in a forked process the console's lock may be held for ever
            os.write(2, f"{text}\n".encode())


def load_torch() -> None:
    """Import PyTorch and what stands on it, which takes a second or two; a terminal says so."""
    if "torch" not in sys.modules:
        with doing("loading PyTorch"):
            importlib.import_module("torch")
            importlib.import_module("idiolect.runs")


@contextmanager
def doing(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what goes on, while in here; what is yielded says it anew."""
    if not ERR.is_terminal:
        yield lambda _: None
        return
    with ERR.status(escape(visible(what)), spinner="line") as status:
        status.update(spinner="line")  # shows it now: the next thing may keep the thread that draws from running
        yield lambda text: status.update(escape(visible(text)))


def complain(text: str) -> None:
    """An error, in red, on standard error; a terminal breaks it between words."""
    ERR.print(Text(visible(f"error: {text}", lines=True), style="red"), soft_wrap=not ERR.is_terminal)


def say(text: str = "", style: str = "") -> None:
    """A line of plain text on standard output, broken only by the terminal."""
    OUT.print(Text(visible(text, lines=True), style=style), soft_wrap=True)


def paragraph(text: str, style: str = "", indent: int = 2) -> None:
    """Text that is wrapped between words, with later lines indented."""
    for number, line in enumerate(Text(visible(text), style=style).wrap(OUT, max(20, OUT.width - indent))):
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
            Text(head),
            justify="right" if number else "left",
            no_wrap=number or head in whole,
            overflow="fold",
            style="bold" if place == 0 else "",
        )
    lines = [[visible(cell) for cell in row] for row in rows]
    others = sum(1 + max(map(len, column)) for column in zip(heads[1:], *(line[1:] for line in lines), strict=True))
    for first, *rest in lines:
        table.add_row(*map(Text, (first if text else break_name(first, OUT.width - others - 1), *rest)))
    OUT.print(table)
    say()


def break_name(name: str, width: int) -> str:
    """A name in lines that fit, broken inside the expression of a method: after a bracket or a comma.

    >>> break_name("fedlag(flayer(ditto(lam=0.25)), k=1)", 20).split("\\n")
    ['fedlag(flayer(ditto(', 'lam=0.25)), k=1)']
    """
    lines = [""]
    for part in re.split(r"(?<=\w\()|(?<=, )", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def show(table: Written, whole: Sequence[str] = (), text: bool = False) -> None:
    """A table as it is written elsewhere, under its title."""
    heads = [column.head for column in table.columns]
    rows = [[cell.text for cell in row] for row in table.rows]
    show_table(heads, rows, title=table.title, whole=whole, text=text)


def show_groups(groups: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Rows under headings; the first column, a name, and those before the last are as wide as their longest cell
    anywhere, and the last one takes what is left."""
    rows = [row for group in groups.values() for row in group]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    for title, group in groups.items():
        if not group:
            continue
        say(title, "bold")
        table = Table.grid(padding=(0, 2, 0, 0))
        for width in (0, *widths):
            table.add_column(width=width or None, no_wrap=width > 0)
        for row in group:
            table.add_row("", *(Text(visible(cell), "cyan" * (place == 0)) for place, cell in enumerate(row)))
        OUT.print(table)
        say()


def show_json(value: Any) -> None:
    """Plain values as JSON, on a terminal with colours; numbers that JSON lacks become text."""
    OUT.print_json(json.dumps(without_infinities(value)))


def without_infinities(value: Any) -> Any:
    """Plain values with text in place of numbers that are not finite.

    >>> without_infinities({"range": (0, math.inf)})
    {'range': [0, 'inf']}
    """
    if isinstance(value, Mapping):
        return {key: without_infinities(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def place(folder: Path) -> str:
    """A folder as the user would type it."""
    try:
        return str(folder.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
