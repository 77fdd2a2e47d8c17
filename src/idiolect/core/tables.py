"""A table with numbers and how they are shown, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Cell(NamedTuple):
    """What is shown, and the number (or name) behind it; `short` is shown where room is short."""

    text: str
    value: float | str
    short: str | None = None


class Column(NamedTuple):
    """A column's head, and which of its values is the best; `short` is its head where room is short.

    A column whose short head is empty is left out there.
    """

    head: str
    best: Literal["high", "low", ""] = ""
    short: str | None = None


@dataclass(frozen=True)
class Table:
    """A table; the first column names the rows.

    Attributes:
        name: the name of its file, and its anchor on a page.
        note: how to read it.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def best_cells(self) -> set[tuple[int, int]]:
        """The cells, by row and column, that are the best of their column."""
        cells = set()
        for place, column in enumerate(self.columns):
            values = {row: line[place].value for row, line in enumerate(self.rows)}
            numbers = {row: value for row, value in values.items() if isinstance(value, float) and math.isfinite(value)}
            if column.best and len(set(numbers.values())) > 1:
                best = (max if column.best == "high" else min)(numbers.values())
                cells |= {(row, place) for row, value in numbers.items() if value == best}
        return cells

    def shorten(self) -> Table:
        """The table for a terminal: short heads and texts, without the columns that have no short head."""
        places = [place for place, column in enumerate(self.columns) if column.short != ""]
        columns = tuple(Column(c.head if c.short is None else c.short, c.best) for c in _pick(self.columns, places))
        rows = (_pick(row, places) for row in self.rows)
        cells = tuple(tuple(Cell(c.text if c.short is None else c.short, c.value) for c in row) for row in rows)
        return replace(self, columns=columns, rows=cells)

    def csv(self) -> str:
        """The numbers, unrounded; what is not a number is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.head for column in self.columns)
        for row in self.rows:
            writer.writerow("" if cell.value != cell.value else cell.value for cell in row)
        return text.getvalue()

    def markdown(self) -> str:
        """What is shown, the best of a column in bold."""
        ruler = ["---", *("---:" for _ in self.columns[1:])]
        lines = [[column.head for column in self.columns], ruler, *self._lines("**{}**".format)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """A tabular for the package booktabs, the best of a column in bold."""
        head = " & ".join(_escape_latex(column.head) for column in self.columns)
        lines = self._lines("\\textbf{{{}}}".format, _escape_latex)
        body = "".join(f"{' & '.join(line)} \\\\\n" for line in lines)
        form = "l" + "r" * (len(self.columns) - 1)
        return (
            f"\\begin{{tabular}}{{{form}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
        )

    def _lines(self, embolden: Callable[[str], str], escape: Callable[[str], str] = str) -> list[list[str]]:
        """The texts of all cells, row by row, the best of a column made bold."""
        best = self.best_cells()
        texts = [[escape(cell.text) for cell in row] for row in self.rows]
        return [
            [embolden(text) if (row, at) in best else text for at, text in enumerate(line)]
            for row, line in enumerate(texts)
        ]


def _pick(line: Sequence[T], places: Sequence[int]) -> list[T]:
    return [line[place] for place in places]


_LATEX = {
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
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return "".join(_LATEX.get(sign, sign) for sign in text)


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
    """How a metric's values are written: accuracy in percent, others with four digits.

    >>> formatter("accuracy")(0.8635), formatter("mse")(0.0123456), formatter("accuracy")(0.01, sign=True)
    ('86.35', '0.01235', '+1.00')
    """

    def write(value: float, sign: bool = False) -> str:
        plus = "+" if sign else ""
        if math.isnan(value):
            return "–"
        return f"{100 * value:{plus}.2f}" if metric == "accuracy" else f"{value:{plus}.4g}"

    return write


def label(metric: str) -> str:
    """A metric with the unit that its values are written in.

    >>> label("accuracy"), label("mse")
    ('accuracy (%)', 'mse')
    """
    return f"{metric} (%)" if metric == "accuracy" else metric


def probability(p: float) -> str:
    """A p-value as tables write it.

    >>> probability(0.0421), probability(0.0002)
    ('0.042', '<.001')
    """
    return "–" if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}"
