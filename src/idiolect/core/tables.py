"""A table with numbers and how they are shown, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol


class Cell(NamedTuple):
    """What is shown, and the number (or name) behind it."""

    text: str
    value: float | str


class Column(NamedTuple):
    """A column's head, and which of its values is the best."""

    head: str
    best: Literal["high", "low", ""] = ""


@dataclass(frozen=True)
class Table:
    """A table with a file's name, a title and a note that says how to read it; the first column is a name."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def leaders(self) -> set[tuple[int, int]]:
        """The cells, by row and column, that are the best of their column."""
        found = set()
        for place, column in enumerate(self.columns):
            values = {row: cells[place].value for row, cells in enumerate(self.rows)}
            numbers = {row: each for row, each in values.items() if isinstance(each, float) and math.isfinite(each)}
            if column.best and len(set(numbers.values())) > 1:
                best = (max if column.best == "high" else min)(numbers.values())
                found |= {(row, place) for row, each in numbers.items() if each == best}
        return found

    def csv(self) -> str:
        """The numbers, unrounded; what is not a number is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.head for column in self.columns)
        for row in self.rows:
            writer.writerow("" if each.value != each.value else each.value for each in row)
        return text.getvalue()

    def markdown(self) -> str:
        """What is shown, the best of a column in bold."""
        leaders = self.leaders()
        lines = [[column.head for column in self.columns], ["---", *("---:" for _ in self.columns[1:])]]
        for row, cells in enumerate(self.rows):
            lines.append([f"**{c.text}**" if (row, at) in leaders else c.text for at, c in enumerate(cells)])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """A tabular for the package booktabs, the best of a column in bold."""
        leaders = self.leaders()
        lines = []
        for row, cells in enumerate(self.rows):
            shown = [_tex(cell.text) for cell in cells]
            lines.append(" & ".join(f"\\textbf{{{s}}}" if (row, at) in leaders else s for at, s in enumerate(shown)))
        head = " & ".join(_tex(column.head) for column in self.columns)
        body = "".join(f"{line} \\\\\n" for line in lines)
        form = "l" + "r" * (len(self.columns) - 1)
        return (
            f"\\begin{{tabular}}{{{form}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
        )


_TEX = {
    "±": r"$\pm$",
    "–": "--",
    "†": r"$^\dagger$",
    "×": r"$\times$",
    "<": "$<$",
    ">": "$>$",
    "−": "$-$",
    "…": r"\dots{}",
}


def _tex(text: str) -> str:
    """Plain text for LaTeX.

    >>> _tex("fedprox(mu=0.1)_a: 1.2 ± 0.3 %")
    'fedprox(mu=0.1)\\\\_a: 1.2 $\\\\pm$ 0.3 \\\\%'
    """
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return "".join(_TEX.get(each, each) for each in text)


def number(value: float, digits: int | None = None) -> Cell:
    """A cost, with about three digits.

    >>> [number(each).text for each in (0.034, 3.21, 12345.6, float("nan"))]
    ['0.034', '3.21', '12,346', '–']
    """
    if math.isnan(value):
        return Cell("–", value)
    digits = max(0, min(3, 2 - math.floor(math.log10(abs(value))))) if digits is None and value else digits or 0
    text = f"{value:,.{digits}f}"
    return Cell(text.rstrip("0").rstrip(".") if "." in text else text, value)


class Show(Protocol):
    """How a value is written."""

    def __call__(self, value: float, sign: bool = False) -> str:
        """The value as text."""
        ...


def shower(metric: str) -> Show:
    """How a metric's values are written: accuracy in percent, others with four digits.

    >>> shower("accuracy")(0.8635), shower("mse")(0.0123456), shower("accuracy")(0.01, sign=True)
    ('86.35', '0.01235', '+1.00')
    """

    def show(value: float, sign: bool = False) -> str:
        plus = "+" if sign else ""
        if math.isnan(value):
            return "–"
        return f"{100 * value:{plus}.2f}" if metric == "accuracy" else f"{value:{plus}.4g}"

    return show


def probability(p: float) -> str:
    """A p-value as tables write it.

    >>> probability(0.0421), probability(0.0002)
    ('0.042', '<.001')
    """
    return "–" if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}"
