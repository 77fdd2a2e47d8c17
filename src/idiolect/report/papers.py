"""One table of several comparisons for a paper: methods down, data sets and partitions across; and how methods rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..comparison.leaderboard import Comparison
from ..comparison.ranks import common_names, critical_difference, draw_ranks, friedman, mean_ranks
from ..comparison.statistics import SIGNIFICANT, SPREADS, compare_pairs, holm, spread_over_seeds
from ..contract import methods as registry
from ..core.errors import InputError, OptionError
from ..core.files import write_text
from ..core.options import did_you_mean
from ..core.registry import describe
from ..core.tables import Cell, Column, Table, number, scale, score_cell, unit
from .folders import read_study

Value = Callable[[Mapping[str, Any]], float]
"""A number of a run, from its summary."""
SPREAD = "std"
ENDINGS = (".tex", ".csv", ".md")


def _selected(name: str) -> Value:
    return lambda summary: float(summary[summary["metric"]]["selected"][name])


def _block(name: str) -> Value:
    return lambda summary: float(summary[summary["metric"]][name][summary["headline"]])


def _beside(name: str) -> Value:
    return lambda summary: float(summary.get(name, {}).get("selected", {}).get(summary["headline"], math.nan))


SCORES: dict[str, Value] = {
    **{name: _block(name) for name in ("selected", "last", "best")},
    **{name: _selected(name) for name in ("weighted", "mean", "std", "bottom_decile", "worst")},
    **{name: _beside(name) for name in ("unseen", "global", "after_local")},
}
"""Columns in the unit of the headline metric. All but `std` are better the better the metric."""
COSTS: dict[str, Value] = {
    "mb_up": lambda summary: summary["bytes_up"] / 1e6,
    "mb_down": lambda summary: summary["bytes_down"] / 1e6,
    "gradients": lambda summary: float(summary["gradients"]),
    "seconds": lambda summary: float(summary["seconds"]),
}
COLUMNS = (*SCORES, *COSTS)


@dataclass(frozen=True)
class Part:
    """One comparison as it stands in the table: its title, and the summaries of each method, seed by seed."""

    title: str
    comparison: Comparison
    summaries: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The headline."""
        return str(self.comparison.protocol["metric"])

    @property
    def sign(self) -> float:
        """1 where higher scores are better, else -1."""
        return -1.0 if self.comparison.protocol["direction"] == "lower" else 1.0

    def values(self, method: str, column: str) -> list[float]:
        """A column's number of every seed; none where the method did not take part."""
        return [self.find(column)(summary) for summary in self.summaries.get(method, ())]

    def find(self, column: str) -> Value:
        """What gives a column: one that is known, or another metric of this comparison."""
        if column in SCORES or column in COSTS:
            return {**SCORES, **COSTS}[column]
        return lambda summary: float(summary.get("others", {}).get(column, {}).get(summary["headline"], math.nan))


@dataclass(frozen=True)
class PaperTable:
    """Methods over data sets.

    Attributes:
        table: with `latex()`, `csv()` and `markdown()`.
        ranks: the mean rank of every method that is in all comparisons, by its label, best first.
        critical: how far mean ranks lie apart that differ at 5 % (Nemenyi); NaN of one comparison.
        p: of Friedman's test that all methods are alike.
    """

    table: Table
    ranks: Mapping[str, float]
    critical: float
    p: float

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return self.table.html()

    def diagram(self) -> str:
        """The critical-difference diagram, as SVG."""
        return draw_ranks(self.ranks, self.critical)

    def latex(self) -> str:
        """A tabular for the package booktabs, with how to read it as comments."""
        note = "".join(f"% {line}\n" for line in self.table.note.split("\n"))
        return note + self.table.latex()

    def write(self, path: Path | str) -> Path:
        """Write it as LaTeX, CSV or Markdown, by the ending; `.svg` is the diagram."""
        path = Path(path)
        texts = {
            ".tex": self.latex,
            ".csv": self.table.csv,
            ".md": lambda: f"{self.table.markdown()}\n{self.table.note}\n",
            ".svg": self.diagram,
        }
        if path.suffix not in texts:
            raise InputError(f"{path}: the ending says the form; it must be one of {', '.join(texts)}")
        write_text(path, texts[path.suffix]())
        return path


def paper_table(
    folders: Sequence[str | Path],
    *,
    columns: str | Sequence[str] = "selected",
    spread: str = SPREAD,
    methods: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    names: Sequence[str] | Mapping[str, str] | None = None,
    ranks: bool = False,
    marks: bool = True,
    digits: int | None = None,
    trust: bool = False,
) -> PaperTable:
    """One table of several comparisons.

    Args:
        folders: the folder of a comparison each.
        columns: what stands for each: `selected`, `last`, `best`, `mean`, `std` (over clients), `bottom_decile`,
            `worst`, `unseen`, `global`, `after_local`, `mb_up`, `mb_down`, `gradients`, `seconds`, or another metric.
        spread: behind a mean, over seeds: `std`, `se` (standard error), `interval` (95 %) or `none`.
        methods: which, and in which order; by default all, in the order of the first comparison.
        labels: what methods are called, by expression.
        names: what comparisons are called, in order or by folder; by default data and partition.
        ranks: also a column with the mean rank over the comparisons.
        marks: bold where the best is better than every other, and underlined where the second is better than all but
            the best: by paired t-tests over seeds with Holm's correction, p < 0.05.
        digits: behind the point, of scores; by default two of the smallest spread, or as on the page.
        trust: as for `read_study`.
    """
    if spread not in SPREADS:
        raise OptionError(f"spread={spread!r} is not allowed; it must be one of {', '.join(SPREADS)}")
    wanted = [text.strip() for text in columns.split(",")] if isinstance(columns, str) else list(columns)
    parts = _read_parts(folders, names, trust)
    for column in wanted:
        _check_column(column, parts)
    known = list(dict.fromkeys(method for part in parts for method in part.summaries))
    chosen = _choose(methods, known)
    titles = {_normal(method): label for method, label in (labels or {}).items()}
    if unknown := [method for method in titles if method not in known]:
        raise InputError(f"labels: {unknown[0]} is in no comparison.{did_you_mean(unknown[0], known)}")
    called = {method: titles.get(method, method) for method in chosen}
    if twice := [label for label in called.values() if list(called.values()).count(label) > 1]:
        raise InputError(f"two methods are called {twice[0]!r}; give each its own label")
    return _put_together(parts, wanted, chosen, called, spread, ranks, marks, digits)


def _read_parts(
    folders: Sequence[str | Path], names: Sequence[str] | Mapping[str, str] | None, trust: bool
) -> list[Part]:
    if not folders:
        raise InputError("no comparison is given; name the folders of some")
    by_folder = {str(Path(key)): title for key, title in names.items()} if isinstance(names, Mapping) else {}
    if unknown := [key for key in by_folder if key not in map(str, map(Path, folders))]:
        raise InputError(f"names: {unknown[0]} is none of the folders")
    if names is not None and not isinstance(names, Mapping) and len(names) != len(folders):
        raise InputError(f"{len(names)} names are given for {len(folders)} comparisons; give one for each")
    parts: list[Part] = []
    for at, folder in enumerate(folders):
        comparison = read_study([folder], trust=trust).comparison
        protocol = comparison.protocol
        title = f"{protocol['data']}, {protocol['partition']['name']}"
        title = by_folder.get(str(Path(folder)), title) if names is None or isinstance(names, Mapping) else names[at]
        if title in [part.title for part in parts]:
            title = f"{title} ({Path(folder).name})"
        summaries = {
            row.method: [run["summary"] for run in comparison.runs if run["method"] == row.method]
            for row in comparison.rows
        }
        parts.append(Part(title, comparison, summaries))
    return parts


def _check_column(column: str, parts: Sequence[Part]) -> None:
    others = {name for part in parts for of_one in part.summaries.values() for s in of_one for name in s["others"]}
    if column not in COLUMNS and column not in others:
        known = (*COLUMNS, *sorted(others))
        raise InputError(f"there is no column {column!r}.{did_you_mean(column, known)} Columns: {', '.join(known)}.")


def _normal(method: str) -> str:
    """A method's expression as comparisons write it; what is not known here is taken as it is written."""
    try:
        return describe(registry.build(method))
    except InputError:
        return method


def _choose(methods: Sequence[str], known: Sequence[str]) -> list[str]:
    chosen = [_normal(method) for method in methods] or list(known)
    if unknown := [method for method in chosen if method not in known]:
        raise InputError(
            f"{unknown[0]} is in no comparison.{did_you_mean(unknown[0], known)} There are {', '.join(known)}"
        )
    return chosen


def _put_together(
    parts: Sequence[Part],
    wanted: Sequence[str],
    chosen: Sequence[str],
    called: Mapping[str, str],
    spread: str,
    ranks: bool,
    marks: bool,
    digits: int | None,
) -> PaperTable:
    heads, cells = [Column("method")], [[Cell(called[method], called[method])] for method in chosen]
    bold, second = set[tuple[int, int]](), set[tuple[int, int]]()
    for part in parts:
        for name in wanted:
            heads.append(_head(part, name, spread, alone=len(wanted) == 1))
            values = [part.values(method, name) for method in chosen]
            shown = _count_digits(part, name, values, spread) if digits is None else digits
            for row, line in zip(cells, values, strict=True):
                row.append(_cell(part, name, line, spread, shown))
            if marks and name != "std" and name not in COSTS:
                first, after = find_standing(values, _sign(part, name))
                bold |= {(row, len(heads) - 1) for row in first}
                second |= {(row, len(heads) - 1) for row in after}
    tables = [
        {called[m]: part.sign * spread_over_seeds(part.values(m, "selected"), "none").mean
         for m in chosen if m in part.summaries}
        for part in parts
    ]  # fmt: skip
    places = mean_ranks(tables)
    if ranks:
        heads.append(Column("mean rank", "low"))
        for row, method in zip(cells, chosen, strict=True):
            rank = places.get(called[method], math.nan)
            row.append(Cell("–" if math.isnan(rank) else f"{rank:.2f}", rank))
    table = Table("paper", "", _note(parts, spread, marks), tuple(heads), tuple(map(tuple, cells)),
                  frozenset(bold), frozenset(second))  # fmt: skip
    several = len(parts) > 1 and len(common_names(tables)) > 1
    critical = critical_difference(len(places), len(parts)) if several else math.nan
    return PaperTable(table, places, critical, friedman(tables))


def _head(part: Part, name: str, spread: str, alone: bool) -> Column:
    metric = _metric(part, name)
    shown = {"mb_up": "MB up", "mb_down": "MB down"}.get(name, name.replace("_", " "))
    words = shown
    if alone and name in SCORES:
        words = metric if name == "selected" else f"{metric}, {shown}"
    head = f"{words} ({unit(metric)})" if name not in COSTS and unit(metric) else words
    best = "" if name in COSTS or name == "std" else "high" if _sign(part, name) > 0 else "low"
    return Column(head, best, has_interval=spread != "none", spread=SPREADS[spread], group=part.title)  # type: ignore[arg-type]


def _metric(part: Part, name: str) -> str:
    """In which metric's unit a column is."""
    return part.metric if name in COLUMNS else name


def _sign(part: Part, name: str) -> float:
    if name in COLUMNS:
        return part.sign
    for of_one in part.summaries.values():
        for summary in of_one:
            if name in summary["others"]:
                return -1.0 if summary["others"][name]["direction"] == "lower" else 1.0
    return 1.0


def _cell(part: Part, name: str, values: Sequence[float], spread: str, digits: int | None) -> Cell:
    mean, half = spread_over_seeds(values, spread)
    if not values or math.isnan(mean):
        return Cell("–", math.nan, None, math.nan)
    if name in COSTS:
        cell = number(mean)
        return cell if math.isnan(half) else cell._replace(text=f"{cell.text} ± {number(half).text}", half=half)
    metric = _metric(part, name)
    if digits is None:
        return score_cell(mean, metric, half)
    factor = scale(metric)
    text = f"{factor * mean:.{digits}f}" + ("" if math.isnan(half) else f" ± {factor * half:.{digits}f}")
    return Cell(text, factor * mean, None, None if math.isnan(half) else factor * half)


def _count_digits(part: Part, name: str, values: Sequence[Sequence[float]], spread: str) -> int | None:
    """Digits behind the point, alike for a column: those that show two of the smallest spread; None is the usual."""
    halves = [spread_over_seeds(line, spread).half for line in values]
    known = [half for half in halves if half > 0]
    if unit(_metric(part, name)) or not known:
        return None
    return min(9, max(0, 1 - math.floor(math.log10(min(known)))))


def find_standing(values: Sequence[Sequence[float]], sign: float) -> tuple[list[int], list[int]]:
    """The row that is better than every other, and the one that is better than all but this, by paired t-tests over
    seeds with Holm's correction; none where the difference does not stand.

    >>> find_standing([[0.5, 0.6, 0.7], [0.91, 0.9, 0.92], [0.2, 0.31, 0.4]], 1.0)
    ([1], [0])
    >>> find_standing([[0.5, 0.6, 0.7], [0.6, 0.6, 0.65]], 1.0)
    ([], [])
    """
    order = [row for row in range(len(values)) if len(values[row]) > 1 and not math.isnan(_mean(values[row]))]
    order.sort(key=lambda row: -sign * _mean(values[row]))
    found: list[list[int]] = []
    for place in (0, 1):
        best, below = values[order[place]] if place < len(order) else [], [values[row] for row in order[place + 1 :]]
        tests = [compare_pairs(best, line) for line in below if len(line) == len(best)]
        corrected = holm([test.p for test in tests])
        beaten = [p < SIGNIFICANT and sign * test.difference > 0 for test, p in zip(tests, corrected, strict=True)]
        found.append([order[place]] if below and sum(beaten) == len(below) else [])
    return found[0], found[1]


def _mean(values: Sequence[float]) -> float:
    return spread_over_seeds(values, "none").mean


def _note(parts: Sequence[Part], spread: str, marks: bool) -> str:
    counts = sorted({len(part.comparison.protocol["seeds"]) for part in parts})
    seeds = " or ".join(map(str, counts))
    lines = [
        f"Means over {seeds} seed{'s' * (counts != [1])}" + (f" ± {SPREADS[spread]}." if spread != "none" else ".")
    ]
    if marks and counts != [1]:
        lines.append(
            "Bold: better than every other; underlined: better than all but the best (paired t-tests over seeds,"
            f" Holm-corrected p < {SIGNIFICANT:g})."
        )
    return "\n".join(lines)
