"""A table with numbers and how they are shown, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from .names import visible

T = TypeVar("T")


class Cell(NamedTuple):
    """What is shown, and the number (or name) behind it, in the same unit; `short` is shown where room is short, and
    `half` is half of the number's interval, where it has one."""

    text: str
    value: float | str
    short: str | None = None
    half: float | None = None


class Column(NamedTuple):
    """A column's head, and which of its values are best; `short` is its head where room is short.

    A column whose short head is empty is left out there. Where a table says the unit of many columns at once, `unit`
    says it in the heads of a CSV file. `has_interval`: its cells have half of an interval, or another `spread`, a
    column of its own there. Columns one after another that are of one `group` stand below its title in LaTeX.
    """

    head: str
    best: Literal["high", "low", ""] = ""
    short: str | None = None
    unit: str = ""
    has_interval: bool = False
    spread: str = "±"
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first column names the rows.

    Attributes:
        name: the name of its file, and its anchor on a page.
        note: how to read it.
        bold: the cells, by row and column, that are written bold: differences that stand.
        second: the cells that are underlined: the second best, where that stands.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    second: frozenset[tuple[int, int]] = frozenset()

    def pick(self, places: Sequence[int]) -> Table:
        """The table with some of its columns, by their places."""
        marked = [
            frozenset((row, places.index(place)) for row, place in marks if place in places)
            for marks in (self.bold, self.second)
        ]
        rows = tuple(tuple(_pick(row, places)) for row in self.rows)
        return replace(self, columns=tuple(_pick(self.columns, places)), rows=rows, bold=marked[0], second=marked[1])

    def shorten(self) -> Table:
        """The table for a terminal: short heads and texts, without the columns that have no short head."""
        short = self.pick([place for place, column in enumerate(self.columns) if column.short != ""])
        columns = tuple(Column(c.head if c.short is None else c.short, c.best) for c in short.columns)
        cells = tuple(tuple(Cell(c.text if c.short is None else c.short, c.value) for c in row) for row in short.rows)
        return replace(short, columns=columns, rows=cells)

    def csv(self) -> str:
        """The numbers in the units of the table, unrounded, and their intervals; what is not a number is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        heads = [
            ": ".join(filter(None, (column.group, column.head))) + f" ({column.unit})" * bool(column.unit)
            for column in self.columns
        ]
        widths = [1 + column.has_interval for column in self.columns]
        parts = [
            (head, f"{column.spread} {head}")[:width]
            for column, head, width in zip(self.columns, heads, widths, strict=True)
        ]
        writer.writerow(csv_cell(head) for part in parts for head in part)
        for row in self.rows:
            numbers = [(cell.value, cell.half)[:width] for cell, width in zip(row, widths, strict=True)]
            writer.writerow(csv_cell(number) for part in numbers for number in part)
        return text.getvalue()

    def markdown(self) -> str:
        """What is shown."""
        ruler = ["---", *("---:" for _ in self.columns[1:])]
        heads = [escape_markdown(": ".join(filter(None, (column.group, column.head)))) for column in self.columns]
        lines = [heads, ruler, *self._lines("**{}**".format, "<u>{}</u>".format, escape_markdown)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def html(self) -> str:
        """What is shown, the best of a column in bold, for a notebook."""
        lines = [
            f"<tr>{''.join(f'<td>{text}</td>' for text in line)}</tr>"
            for line in self._lines(_BOLD, _UNDERLINED, escape_html)
        ]
        heads = "".join(f"<th>{escape_html(column.head)}</th>" for column in self.columns)
        caption = f"<caption>{escape_html(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def latex(self) -> str:
        """A tabular for the package booktabs."""
        head = " & ".join(_escape_latex(column.head) for column in self.columns)
        if any(column.group for column in self.columns):
            head = f"{self._latex_groups()}{head}"
        lines = self._lines("\\textbf{{{}}}".format, "\\underline{{{}}}".format, _escape_latex)
        body = "".join(f"{' & '.join(line)} \\\\\n" for line in lines)
        form = "l" + "r" * (len(self.columns) - 1)
        return (
            f"\\begin{{tabular}}{{{form}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
        )

    def _latex_groups(self) -> str:
        """The titles of groups of columns, each above a rule of its own."""
        titles, rules, at = [], [], 1
        for title, members in groupby(self.columns, key=lambda column: column.group):
            width = len(list(members))
            form = "c" if title else "l"
            titles.append(f"\\multicolumn{{{width}}}{{{form}}}{{{_escape_latex(title)}}}")
            rules += [f"\\cmidrule(lr){{{at}-{at + width - 1}}}"] if title else []
            at += width
        return f"{' & '.join(titles)} \\\\\n{' '.join(rules)}\n"

    def _lines(
        self, embolden: Callable[[str], str], underline: Callable[[str], str], escape: Callable[[str], str]
    ) -> list[list[str]]:
        """The texts of all cells, row by row, bold or underlined where they are to be."""

        def mark(text: str, place: tuple[int, int]) -> str:
            return embolden(text) if place in self.bold else underline(text) if place in self.second else text

        return [
            [mark(escape(cell.text), (row, at)) for at, cell in enumerate(line)] for row, line in enumerate(self.rows)
        ]


def _pick(line: Sequence[T], places: Sequence[int]) -> list[T]:
    return [line[place] for place in places]


def text_table(name: str, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of texts, in which nothing is the best."""
    cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
    return Table(name, title, "", tuple(map(Column, heads)), cells)


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: empty where it is not a number, and text that a spreadsheet would take for a formula begins
    with an apostrophe.

    >>> csv_cell(math.nan), csv_cell(-1.5), csv_cell("=1+1"), csv_cell("a")
    ('', -1.5, "'=1+1", 'a')
    """
    if isinstance(value, str):
        shown = visible(value)
        return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown
    return "" if value != value else value


def escape_markdown(text: str) -> str:
    r"""Plain text for a cell of a Markdown table.

    >>> escape_markdown("a|b <i> [x](y)")
    'a\\|b \\<i> [x]\\(y)'
    """
    return re.sub(r"([\\|`]|<(?=[\w/!?])|(?<=\])\()", r"\\\1", visible(text))


_BOLD, _UNDERLINED = "<b>{}</b>".format, "<u>{}</u>".format


def escape_html(text: str) -> str:
    """Plain text for a page.

    >>> escape_html("<b> & c")
    '&lt;b&gt; &amp; c'
    """
    return html.escape(visible(text))


def write_html(tables: Iterable[Table], lines: Iterable[str]) -> str:
    """Sentences and tables for a notebook: the first sentence above the tables, the others below."""
    first, *others = [f"<p>{escape_html(line)}</p>" for line in lines]
    return "".join([first, *(table.html() for table in tables), *others])


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "±": r"$\pm$",
    "–": "--",
    "†": r"$^\dagger$",
    "×": r"$\times$",
    "<": "$<$",
    ">": "$>$",
    "−": "$-$",
    "…": r"\dots{}",
}


def _escape_latex(text: str) -> str:
    """Plain text for LaTeX.

    >>> _escape_latex("fedprox(mu=0.1)_a: 1.2 ± 0.3 %")
    'fedprox(mu=0.1)\\\\_a: 1.2 $\\\\pm$ 0.3 \\\\%'
    """
    return "".join(_LATEX.get(sign, sign) for sign in visible(text))


def number(value: float, digits: int | None = None) -> Cell:
    """A cost, with about three digits.

    >>> [number(value).text for value in (0.034, 3.21, 12345.6, float("nan"))]
    ['0.034', '3.21', '12,346', '–']
    """
    if math.isnan(value):
        return Cell("–", value)
    digits = max(0, min(3, 2 - math.floor(math.log10(abs(value))))) if digits is None and value else digits or 0
    text = f"{value:,.{digits}f}"
    return Cell(text.rstrip("0").rstrip(".") if "." in text else text, value)


class Formatter(Protocol):
    """How a value is written."""

    def __call__(self, value: float, sign: bool = False) -> str:
        """The value as text."""
        ...


def formatter(metric: str) -> Formatter:
    """How a metric's values are written: accuracy in percent, others with four digits, or all before the point.

    >>> formatter("accuracy")(0.8635), formatter("mse")(0.0123456), formatter("accuracy")(0.01, sign=True)
    ('86.35', '0.01235', '+1.00')
    >>> formatter("mse")(12438.6), formatter("mse")(1.5e12)
    ('12,439', '1.5e+12')
    """

    def write(value: float, sign: bool = False) -> str:
        plus = "+" if sign else ""
        if math.isnan(value):
            return "–"
        if metric == "accuracy":
            return f"{scale(metric) * value:{plus}.2f}"
        return f"{value:{plus},.0f}" if 1000 <= abs(value) < 1e7 else f"{value:{plus}.4g}"

    return write


def unit(metric: str) -> str:
    """The unit that a metric's values are written in; empty if they are written as they are."""
    return "%" if metric == "accuracy" else ""


def label(metric: str) -> str:
    """A metric with the unit that its values are written in.

    >>> label("accuracy"), label("mse")
    ('accuracy (%)', 'mse')
    """
    return f"{metric} ({unit(metric)})" if unit(metric) else metric


def scale(metric: str) -> float:
    """By what a metric's values are multiplied to be written: accuracy is written in percent."""
    return 100.0 if unit(metric) == "%" else 1.0


def score_cell(value: float, metric: str, half: float = math.nan, sign: bool = False) -> Cell:
    """A metric's value, with half of its interval where there is one.

    >>> score_cell(0.5, "accuracy", half=0.25)
    Cell(text='50.00 ± 25.00', value=50.0, short=None, half=25.0)
    """
    show, factor = formatter(metric), scale(metric)
    text = show(value, sign) + ("" if math.isnan(half) else f" ± {show(half)}")
    return Cell(text, factor * value, None, None if math.isnan(half) else factor * half)


def compact(value: float, digits: int = 3) -> str:
    """A loss or score for a line of text: a few digits after the point, or in all where it is large.

    >>> compact(0.12345), compact(1.5e37), compact(-123456.0, digits=4)
    ('0.123', '1.5e+37', '-1.235e+05')
    """
    return f"{value:.{digits}f}" if abs(value) < 10**4 else f"{value:.{digits}g}"


def probability(p: float) -> str:
    """A p-value as tables write it.

    >>> probability(0.0421), probability(0.0002)
    ('0.042', '<.001')
    """
    return "–" if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}"
