"""A comparison as tables and sentences: the leaderboard with its protocol and footnotes, for the terminal, for files
and for the page of a report."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..core.files import write_text
from ..core.tables import Cell, Column, Formatter, Table, formatter, label, number, probability
from .leaderboard import Comparison, LeaderboardRow, plain
from .statistics import Interval

Columns = dict[Column, Callable[[LeaderboardRow], Cell]]
"""The columns of a table, and what each shows of a method."""


def leaderboard_tables(comparison: Comparison) -> tuple[Table, ...]:
    """The leaderboard: scores, then differences to the baseline and costs, then clients that never trained."""
    tables = (scores_table(comparison), costs_table(comparison))
    unseen = any(each.unseen is not None for each in comparison.rows)
    return (*tables, unseen_table(comparison)) if unseen else tables


def scores_table(comparison: Comparison) -> Table:
    """Scores, and their spread over clients."""
    show = formatter(comparison.protocol["metric"])
    good, lower = _direction(comparison)
    columns: Columns = {
        Column("method"): lambda s: Cell(s.method + _marks(s), s.method, s.method + _adapted(s)),
        Column("selected", good): lambda s: _interval(s.selected, show),
        Column("last", good): lambda s: _interval(s.last, show, short=True),
        Column("best (by test)", good, "best"): lambda s: _interval(s.best, show, short=True),
        Column("mean of clients", good, ""): lambda s: Cell(show(s.mean), s.mean),
        Column("bottom decile", good): lambda s: Cell(show(s.bottom_decile), s.bottom_decile),
        Column("worst client", good, "worst"): lambda s: Cell(show(s.worst), s.worst),
        Column("std of clients", short="std"): lambda s: Cell(show(s.std), s.std),
    }
    means = "Means over seeds, ± half of the 95 % interval. " if len(comparison.protocol["seeds"]) > 1 else ""
    title = label(comparison.protocol["metric"]) + lower
    return _table("leaderboard", title, f"{means}The best by test is optimistic.", columns, comparison.rows)


def costs_table(comparison: Comparison) -> Table:
    """Differences to the baseline, where there are other methods, and what a run of each method costs."""
    baseline, metric = comparison.protocol["baseline"], comparison.protocol["metric"]
    show = formatter(metric)
    points = " (points)" if metric == "accuracy" else ""
    differences: Columns = {
        Column(f"difference{points}", short="difference [95 %]"): lambda s: _difference(s, show),
        Column("low", short=""): lambda s: _bound(s.versus and s.versus.low, show),
        Column("high", short=""): lambda s: _bound(s.versus and s.versus.high, show),
        Column("p"): lambda s: _probability(s, s.versus and s.versus.p),
        Column("p (Holm)", short="Holm"): lambda s: _probability(s, s.p_holm),
    }
    costs: Columns = {
        Column("MB up", short="MB up/down"): lambda s: number(s.mb_up)._replace(short=_traffic(s)),
        Column("MB down", short=""): lambda s: number(s.mb_down),
        Column("steps"): _steps,
        Column("seconds", short="s"): lambda s: number(s.seconds)._replace(short=f"{s.seconds:,.1f}"),
        Column("memory (MB)", short=""): lambda s: number(s.peak_memory_mb, 0),
    }
    name: Columns = {Column("method"): lambda s: Cell(s.method + _marks(s), s.method, s.method)}
    if len(comparison.rows) == 1:
        return _table("costs", "cost per run", "", name | costs, comparison.rows)
    tests = ", paired by seed, with its 95 % Student interval; p of the paired t-test, and corrected by Holm's rule."
    if len(comparison.protocol["seeds"]) == 1:
        tests = "; one seed gives neither intervals nor tests."
    note = f"The difference is the selected score minus that of {baseline}{tests}"
    title = f"difference to {baseline}, and cost per run"
    return _table("costs", title, note, name | differences | costs, comparison.rows)


def unseen_table(comparison: Comparison) -> Table:
    """The scores of clients that never trained."""
    metric = comparison.protocol["metric"]
    show, (good, _) = formatter(metric), _direction(comparison)
    columns: Columns = {
        Column("method"): lambda s: Cell(s.method, s.method),
        Column("selected", good): lambda s: _interval(s.unseen, show),
    }
    rows = [each for each in comparison.rows if each.unseen is not None]
    return _table("unseen", f"clients that never trained: {label(metric)}", "", columns, rows)


# -- cells ------------------------------------------------------------------------------------------------


def _table(name: str, title: str, note: str, columns: Columns, rows: Sequence[LeaderboardRow]) -> Table:
    """A table with one row per method, from its columns and what each shows of a method."""
    cells = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
    return Table(name, title, note, tuple(columns), cells)


def _direction(comparison: Comparison) -> tuple[Literal["high", "low"], str]:
    """Which scores are best, and the words that say so where it is not the usual."""
    return ("low", " (lower is better)") if comparison.protocol["direction"] == "lower" else ("high", "")


def _adapted(row: LeaderboardRow) -> str:
    return "†" if row.point == "adapted" else ""


def _marks(row: LeaderboardRow) -> str:
    return _adapted(row) + "*" * row.needs_more_steps


def _interval(interval: Interval | None, show: Formatter, short: bool = False) -> Cell:
    """A mean with half of its interval, which the short text may leave out."""
    mean, half = interval or Interval(math.nan, math.nan)
    text = show(mean) + ("" if math.isnan(half) else f" ± {show(half)}")
    return Cell(text, mean, show(mean) if short else text)


def _difference(row: LeaderboardRow, show: Formatter) -> Cell:
    """The difference to the baseline; its short text has the interval beside it."""
    if row.versus is None:
        return Cell("baseline", math.nan)
    difference, low, high, _ = row.versus
    text = show(difference, sign=True)
    return Cell(text, difference, f"{text} (one seed)" if math.isnan(low) else f"{text} [{show(low)}, {show(high)}]")


def _bound(value: float | None, show: Formatter) -> Cell:
    return Cell("", math.nan) if value is None else Cell(show(value, sign=True), value)


def _probability(row: LeaderboardRow, p: float | None) -> Cell:
    """A p-value; nothing for the baseline and, in the short text, nothing where one seed gives none."""
    if row.versus is None or p is None:
        return Cell("", math.nan)
    return Cell(probability(p), p, "" if math.isnan(row.versus.low) else probability(p))


def _traffic(row: LeaderboardRow) -> str:
    return "/".join(f"{mb:,.1f}" if mb < 100 else f"{mb:,.0f}" for mb in (row.mb_up, row.mb_down))


def _steps(row: LeaderboardRow) -> Cell:
    steps = row.relative_steps
    text = "–" if math.isnan(steps) else f"{steps:.2f}×"
    return Cell(text, steps, text.removesuffix("×") + "*" * row.needs_more_steps)


# -- words ------------------------------------------------------------------------------------------------


def verdict(summary: Mapping[str, Any]) -> str:
    """A run's score and time in a few words."""
    metric = summary["metric"]
    score = formatter(metric)(summary[metric]["selected"]["weighted"])
    return f"{metric} {score}{' %' * (metric == 'accuracy')}, {summary['seconds']:.1f} s"


def protocol_lines(comparison: Comparison) -> list[str]:
    """Under which conditions the numbers hold, in sentences."""
    protocol = comparison.protocol
    seeds, hashes = protocol["seeds"], protocol["partition"]["hashes"]
    several = ", ".join(f"{hashes[str(seed)]} (seed {seed})" for seed in seeds)
    epochs = f"{protocol['local_epochs']} local epoch{'s' * (protocol['local_epochs'] != 1)}"
    lines = [
        f"Data: {protocol['data']}, {protocol['partition']['clients']} clients, {protocol['partition']['name']};"
        f" partition {several if len(set(hashes.values())) > 1 else next(iter(hashes.values()))}.",
        f"Training: {protocol['rounds']} rounds, participation {protocol['participation']:g}, {epochs},"
        f" batch size {protocol['batch_size']}, learning rate {protocol['lr']:g},"
        f" {protocol['optimizer']}; model {protocol['model']}.",
        f"Score: test {protocol['metric']} of all clients' personal models, weighted by samples; selected is the round"
        f" with {_selection(protocol['selection'])}, best the round with the best test score, which is optimistic.",
        "Seeds: "
        + ", ".join(map(str, seeds))
        + "; the same partition, initial weights and sampled clients for every method"
        + ("; ± is the 95 % Student interval over seeds." if len(seeds) > 1 else "; one seed, so no intervals."),
    ]
    if rates := protocol.get("rates"):
        lines.append("Own learning rates: " + ", ".join(f"{name} {rate:g}" for name, rate in rates.items()) + ".")
    if len(seeds) > 1 and len(comparison.rows) > 1:
        lines.append(
            f"Differences to {protocol['baseline']} are paired by seed: 95 % Student interval, p of the paired t-test,"
            " and p corrected by Holm's rule for the number of methods."
        )
    return lines


def _selection(rule: str) -> str:
    best = "the best sample-weighted validation score"
    return best if rule == "sample-weighted validation" else f"the {rule}, for want of validation data"


def footnotes(comparison: Comparison) -> list[str]:
    """What the marks in the tables mean, and what was left out."""
    lines = [f"steps: local training steps per run, as a multiple of FedAvg's {comparison.protocol['fedavg_steps']:,}."]
    if any(each.needs_more_steps for each in comparison.rows):
        lines.append("* needs more local steps than FedAvg, so its budget is larger.")
    if any(each.point == "adapted" for each in comparison.rows):
        lines.append("† scored after each client tuned a copy of its model on its training data; steps leave this out.")
    for each in comparison.rows:
        if each.refused:
            lines.append(f"{each.method}: {each.refused} uploads were left out because they were not finite.")
    lines += [f"skipped {name}: {reason}" for name, reason in comparison.skipped.items()]
    return lines


def markdown(comparison: Comparison) -> str:
    """The leaderboard with its protocol as Markdown."""
    parts = ["\n".join(f"- {line}" for line in protocol_lines(comparison))]
    for table in leaderboard_tables(comparison):
        parts.append(f"**{table.title[0].upper()}{table.title[1:]}**\n\n{table.shorten().markdown().rstrip()}")
    parts.append("\n".join(f"- {line}" for line in footnotes(comparison)).replace("- * ", "- \\* "))
    return "\n\n".join(parts) + "\n"


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write comparison.json, comparison.csv and comparison.md."""
    content = {
        "json": json.dumps(comparison.as_dict(), indent=2) + "\n",
        "csv": table_csv(comparison),
        "md": markdown(comparison),
    }
    for suffix, text in content.items():
        write_text(folder / f"comparison.{suffix}", text)


def table_csv(comparison: Comparison) -> str:
    """One line per method with all numbers, unrounded."""
    lines = [_flat(plain(each)) for each in comparison.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under joined names; what is not a number is left empty."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": each for key, each in _flat(value).items()}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return {k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in flat.items()}
