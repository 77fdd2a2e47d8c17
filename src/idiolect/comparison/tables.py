"""A comparison as tables and sentences: the leaderboard with its protocol and footnotes, for the terminal, for files
and for the page of a report."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..core.files import write_text
from ..core.tables import (
    Cell,
    Column,
    Table,
    csv_cell,
    escape_markdown,
    formatter,
    label,
    number,
    probability,
    score_cell,
    unit,
)
from ..data.federation import GIVEN
from ..data.loading import UNNAMED_DATA
from ..runs.tables import describe_left_out, describe_refusals
from .constants import constant_rows
from .leaderboard import Comparison, LeaderboardRow, plain
from .statistics import SIGNIFICANT, Interval

Columns = dict[Column, Callable[[LeaderboardRow], Cell]]
"""The columns of a table, and what each shows of a method."""


def leaderboard_tables(comparison: Comparison) -> tuple[Table, ...]:
    """The leaderboard: scores, then other metrics, then differences to the baseline and costs, then, where they are
    recorded, the shared models themselves and clients that never trained."""
    shared = any(row.shared is not None for row in comparison.rows)
    unseen = any(row.unseen is not None for row in comparison.rows)
    return (
        scores_table(comparison),
        *([others_table(comparison)] if any(row.others for row in comparison.rows) else []),
        costs_table(comparison),
        *([shared_table(comparison)] if shared else []),
        *([unseen_table(comparison)] if unseen else []),
    )


def scores_table(comparison: Comparison) -> Table:
    """Scores, and their spread over clients."""
    metric = comparison.protocol["metric"]
    good, lower = _direction(comparison)
    head = partial(Column, unit=unit(metric))
    weighted = comparison.protocol["headline"] == "weighted"
    other = "mean of clients" if weighted else "weighted by samples"
    columns: Columns = {
        Column("method"): lambda s: Cell(s.method + _marks(s), s.method, s.method + _short_marks(s)),
        head("selected", good, has_interval=True): lambda s: _interval(s.selected, metric),
        head("last", good, has_interval=True): lambda s: _interval(s.last, metric, short=True),
        head("best (by test)", good, "best", has_interval=True): lambda s: _interval(s.best, metric, short=True),
        head(other, good, ""): lambda s: score_cell(s.mean if weighted else s.weighted, metric),
        head("bottom decile", good): lambda s: score_cell(s.bottom_decile, metric),
        head("worst client", good, "worst"): lambda s: score_cell(s.worst, metric),
        head("std of clients", short="std"): lambda s: score_cell(s.std, metric),
    }
    means = "Means over seeds, ± half of the 95 % interval. " if len(comparison.protocol["seeds"]) > 1 else ""
    title, note = f"test {label(comparison.protocol['metric'])}{lower}", f"{means}The best by test is optimistic."
    table = _table("leaderboard", title, f"{note}{_explain_bold(comparison, 'better than')}", columns, comparison.rows)
    better = [
        n for n, s in enumerate(comparison.rows) if stands(s) and s.versus and (s.versus.difference < 0) == bool(lower)
    ]
    return replace(table, rows=table.rows + constant_rows(comparison), bold=frozenset((n, 1) for n in better))


def stands(row: LeaderboardRow) -> bool:
    """Whether the difference to the baseline is more than chance, by the corrected paired test."""
    return row.p_holm < SIGNIFICANT


def _explain_bold(comparison: Comparison, words: str) -> str:
    """What bold numbers are, where there could be some."""
    if all(math.isnan(row.p_holm) for row in comparison.rows):
        return ""
    return f" Bold: {words} {comparison.protocol['baseline']} by more than chance (Holm-corrected p < {SIGNIFICANT:g})."


def others_table(comparison: Comparison) -> Table:
    """The metrics beside the headline, at the selected round."""
    summary = comparison.runs[0]["summary"] if comparison.runs else {}
    columns: Columns = {Column("method"): lambda s: Cell(s.method, s.method)}
    for name in comparison.rows[0].others:
        lower = summary.get("others", {}).get(name, {}).get("direction") == "lower"
        head = Column(name, "low" if lower else "high", unit=unit(name), has_interval=True)
        columns[head] = partial(_other, name)
    means = _MEANS[comparison.protocol["headline"]]
    note = f"At the round that the {comparison.protocol['metric']} selects, {means}."
    return _table("others", "other metrics", note, columns, comparison.rows)


def _other(name: str, row: LeaderboardRow) -> Cell:
    return _interval(row.others.get(name), name)


def costs_table(comparison: Comparison) -> Table:
    """Differences to the baseline, where there are other methods, and what a run of each method costs."""
    baseline, metric = comparison.protocol["baseline"], comparison.protocol["metric"]
    points = "points" if unit(metric) else ""
    difference = f"difference ({points})" if points else "difference"
    differences: Columns = {
        Column(difference, short="difference [95 %]"): lambda s: _difference(s, metric),
        Column("low", short="", unit=points): lambda s: _bound(s.versus and s.versus.low, metric),
        Column("high", short="", unit=points): lambda s: _bound(s.versus and s.versus.high, metric),
        Column("p"): lambda s: _probability(s, s.versus and s.versus.p),
        Column("p (Holm)", short="Holm"): lambda s: _probability(s, s.p_holm),
    }
    costs: Columns = {
        Column("MB up", short="MB up/down"): lambda s: number(s.mb_up)._replace(short=_traffic(s)),
        Column("MB down", short=""): lambda s: number(s.mb_down),
        Column("gradients"): _gradients,
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
    title, bold = f"difference to {baseline}, and cost per run", _explain_bold(comparison, "differs from")
    table = _table("costs", title, f"{note}{bold}", name | differences | costs, comparison.rows)
    return replace(table, bold=frozenset((n, 1) for n, row in enumerate(comparison.rows) if stands(row)))


def shared_table(comparison: Comparison) -> Table:
    """The scores of the shared model itself, and what personalisation adds to it."""
    metric = comparison.protocol["metric"]
    good, _ = _direction(comparison)
    none = Cell("none", math.nan)
    columns: Columns = {
        Column("method"): lambda s: Cell(s.method, s.method),
        Column("selected", good, unit=unit(metric), has_interval=True): (
            lambda s: none if s.shared is None else _interval(s.shared, metric)
        ),
        Column("personal minus shared", short="personal − shared", unit="points" if unit(metric) else ""): (
            lambda s: none if s.shared is None else score_cell(s.selected.mean - s.shared.mean, metric, sign=True)
        ),
    }
    note = "One model for all clients, without anything that they keep; none where a method has no whole one."
    return _table("shared", f"the shared model itself: {label(metric)}", note, columns, comparison.rows)


def unseen_table(comparison: Comparison) -> Table:
    """The scores of clients that never trained."""
    metric = comparison.protocol["metric"]
    good, _ = _direction(comparison)
    columns: Columns = {
        Column("method"): lambda s: Cell(s.method, s.method),
        Column("selected", good, unit=unit(metric), has_interval=True): lambda s: _interval(s.unseen, metric),
    }
    rows = [row for row in comparison.rows if row.unseen is not None]
    return _table("unseen", f"clients that never trained: {label(metric)}", "", columns, rows)


# -- cells ------------------------------------------------------------------------------------------------


def _table(name: str, title: str, note: str, columns: Columns, rows: Sequence[LeaderboardRow]) -> Table:
    """A table with one row per method, from its columns and what each shows of a method."""
    cells = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
    return Table(name, title, note, tuple(columns), cells)


def _direction(comparison: Comparison) -> tuple[Literal["high", "low"], str]:
    """Which scores are best, and the words that say so where it is not the usual."""
    return ("low", " (lower is better)") if comparison.protocol["direction"] == "lower" else ("high", "")


def _mark_adapted(row: LeaderboardRow) -> str:
    return "†" if row.point == "adapted" else ""


def _short_marks(row: LeaderboardRow) -> str:
    return _mark_adapted(row) + "‡" * (row.beats_constants is False)


def _marks(row: LeaderboardRow) -> str:
    return _mark_adapted(row) + "*" * row.needs_more_gradients + "‡" * (row.beats_constants is False)


def _interval(interval: Interval | None, metric: str, short: bool = False) -> Cell:
    """A mean with half of its interval, which the short text may leave out."""
    mean, half = interval or Interval(math.nan, math.nan)
    cell = score_cell(mean, metric, half)
    return cell._replace(short=score_cell(mean, metric).text) if short else cell


def _difference(row: LeaderboardRow, metric: str) -> Cell:
    """The difference to the baseline; its short text has the interval beside it."""
    if row.versus is None:
        return Cell("baseline", math.nan)
    difference, low, high, _ = row.versus
    cell, show = score_cell(difference, metric, sign=True), formatter(metric)
    if math.isnan(difference):
        return cell
    return cell._replace(
        short=f"{cell.text} (one seed)" if math.isnan(low) else f"{cell.text} [{show(low)}, {show(high)}]"
    )


def _bound(value: float | None, metric: str) -> Cell:
    return Cell("", math.nan) if value is None else score_cell(value, metric, sign=True)


def _probability(row: LeaderboardRow, p: float | None) -> Cell:
    """A p-value; nothing for the baseline and, in the short text, nothing where one seed gives none."""
    if row.versus is None or p is None:
        return Cell("", math.nan)
    return Cell(probability(p), p, "" if math.isnan(row.versus.low) else probability(p))


def _traffic(row: LeaderboardRow) -> str:
    return "/".join(f"{mb:,.1f}" if mb < 100 else f"{mb:,.0f}" for mb in (row.mb_up, row.mb_down))


def _gradients(row: LeaderboardRow) -> Cell:
    gradients = row.relative_gradients
    if math.isnan(gradients):
        return number(row.gradients)
    text = f"{gradients:.2f}×"
    return Cell(text, gradients, text.removesuffix("×") + "*" * row.needs_more_gradients)


# -- words ------------------------------------------------------------------------------------------------


def verdict(summary: Mapping[str, Any]) -> str:
    """A run's score and time in a few words."""
    metric = summary["metric"]
    score = score_cell(summary[metric]["selected"][summary["headline"]], metric).text
    return f"{metric} {score} {unit(metric)}".rstrip() + f", {summary['seconds']:.1f} s"


def protocol_lines(comparison: Comparison) -> list[str]:
    """Under which conditions the numbers hold, in sentences."""
    protocol = comparison.protocol
    seeds, hashes = protocol["seeds"], protocol["partition"]["hashes"]
    several = ", ".join(f"{hashes[str(seed)]} (seed {seed})" for seed in seeds)
    epochs = f"{protocol['local_epochs']} local epoch{'s' * (protocol['local_epochs'] != 1)}"
    lines = [
        f"Data: {name_data(protocol)}; {protocol['partition']['clients']} clients, partition"
        f" {several if len(set(hashes.values())) > 1 else next(iter(hashes.values()))}.",
        f"Training: {protocol['rounds']} rounds, participation {protocol['participation']:g}, {epochs},"
        f" batch size {protocol['batch_size']}, learning rate {protocol['lr']:g},"
        f" {protocol['optimizer']}; model {protocol['model']}.",
        f"Score: test {protocol['metric']} of all clients' personal models, {_MEANS[protocol['headline']]}; selected is"
        f" the {name_selection(protocol['selection'])}, best the round with the best test score, which is optimistic.",
        "Seeds: "
        + ", ".join(map(str, seeds))
        + "; the same partition, initial weights and sampled clients for every method"
        + ("; ± is the 95 % Student interval over seeds." if len(seeds) > 1 else "; one seed, so no intervals."),
    ]
    if protocol.get("budget") == "gradients":
        lines.append("Budget: every method has as many rounds as FedAvg's gradients allow.")
    for title, values in (("learning rates", protocol.get("rates")), ("rounds", protocol.get("rounds_of"))):
        if values:
            lines.append(f"Own {title}: " + ", ".join(f"{name} {value:g}" for name, value in values.items()) + ".")
    if len(seeds) > 1 and len(comparison.rows) > 1:
        lines.append(
            f"Differences to {protocol['baseline']} are paired by seed: 95 % Student interval, p of the paired t-test,"
            " and p corrected by Holm's rule for the number of methods."
        )
    return lines


def name_data(protocol: Mapping[str, Any]) -> str:
    """What was divided among the clients, and how; data that nobody named are the user's own.

    >>> name_data({"data": "custom", "partition": {"name": "given"}})
    'own data, clients as they are'
    """
    data, how = protocol["data"], protocol["partition"]["name"]
    return f"{'own data' if data in UNNAMED_DATA else data}, {'clients as they are' if how == GIVEN else how}"


_MEANS = {"weighted": "weighted by samples", "mean": "the plain mean over clients"}


def name_selection(words: str) -> str:
    """The selected round by how it was selected, after an article.

    >>> name_selection("sample-weighted validation"), name_selection("last round, since validation is missing")
    ('best round by sample-weighted validation', 'last round, since validation is missing')
    """
    return words if words.startswith("last round") else f"best round by {words}"


def footnotes(comparison: Comparison) -> list[str]:
    """What the marks in the tables mean, and what was left out."""
    budget = f"{comparison.protocol['fedavg_gradients']:,}"
    multiple = f", as a multiple of FedAvg's {budget}" if comparison.protocol["fedavg_gradients"] else ""
    lines = [f"gradients: of the model on a batch, in local training{multiple}."]
    if any(row.needs_more_gradients for row in comparison.rows):
        lines.append("* takes more gradients than FedAvg, so its budget is larger.")
    if any(row.point == "adapted" for row in comparison.rows):
        lines.append(
            "† scored after each client adapted a copy of its model on its training data; gradients leave this out."
        )
    if any(row.beats_constants is False for row in comparison.rows):
        lines.append("‡ does not beat a constant: the most frequent class, or the mean, of training targets.")
    for row in comparison.rows:
        if row.refused:
            lines.append(f"{row.method}: {describe_refusals(row.refusals)}.")
        if row.selection != comparison.protocol["selection"]:
            lines.append(f"{row.method}: selected is the {name_selection(row.selection)}.")
        if unscored := sum(not math.isfinite(score) for score in row.scores):
            lines.append(f"{row.method}: undefined under {unscored} of {len(row.scores)} seeds, which are left out.")
    lines += _left_out_lines(comparison)
    lines += [f"failed {name}: {reason}" for name, reason in comparison.failed.items()]
    lines += [f"skipped {name}: {reason}" for name, reason in comparison.skipped.items()]
    return lines


def _left_out_lines(comparison: Comparison) -> list[str]:
    """How many clients' scores are left out of the numbers, methods of which the same holds together."""
    groups: dict[tuple[int, int, int], list[str]] = {}
    for row in comparison.rows:
        groups.setdefault((row.undefined, row.missing, row.clients), []).append(row.method)
    metric, seeds = comparison.protocol["metric"], " over all seeds" * (len(comparison.protocol["seeds"]) > 1)
    lines = []
    for (undefined, missing, clients), methods in groups.items():
        if words := describe_left_out(undefined, missing, clients, metric):
            who = "all methods" if len(groups) == 1 and len(methods) > 1 else ", ".join(methods)
            lines.append(f"{who}: {words}{seeds}.")
    return lines


def markdown(comparison: Comparison) -> str:
    """The leaderboard with its protocol as Markdown."""
    parts = ["\n".join(f"- {escape_markdown(line)}" for line in protocol_lines(comparison))]
    for table in leaderboard_tables(comparison):
        parts.append(
            f"**{escape_markdown(table.title[0].upper() + table.title[1:])}**\n\n{table.shorten().markdown().rstrip()}"
        )
    lines = [escape_markdown(line) for line in footnotes(comparison)]
    parts.append("\n".join(f"- {line}" for line in lines).replace("- * ", "- \\* "))
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
    lines = [_flat(plain(row)) for row in comparison.rows]
    text = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under joined names; what is not a number is left empty."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": cell for key, cell in _flat(value).items()}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list) else csv_cell(value)
    return flat
