"""What came of one run, as tables and sentences: for the terminal and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.tables import Cell, Column, Table, formatter, label, number, score_cell
from .constants import TITLES

KEYS = {"weighted": "weighted", "mean": "mean", "std": "std", "bottom decile": "bottom_decile", "worst": "worst"}
ROUNDS = {"selected": "selected", "last": "last", "best": "best (by test, optimistic)"}


def summary_tables(summary: Mapping[str, Any]) -> tuple[Table, ...]:
    """The scores of a run at each point where it was evaluated, and its other metrics."""
    metric = summary["metric"]
    points = {
        label(metric): metric,
        "before adaptation": "before_adaptation",
        "right after local training": "after_local",
        "the shared model itself": "global",
        "unseen clients": "unseen",
    }
    tables = [_scores_table(title, summary[key], metric) for title, key in points.items() if summary.get(key)]
    if others := summary.get("others"):
        rows = [(_text(label(name)), *_spread_cells(block, name)) for name, block in others.items()]
        tables.append(_table("other metrics", ("other metrics",), rows))
    return tuple(tables)


def describe_run(summary: Mapping[str, Any]) -> str:
    """What was run: method, data, clients, seed, rounds and network."""
    partition = summary["partition"]
    return (
        f"{summary['method']} on {summary['data']}, {partition['clients']} clients, {partition['name']}"
        f" (partition {partition['hash']}), seed {summary['seed']},"
        f" {summary['rounds_done']} of {summary['rounds']} rounds; {describe_parameters(summary['networks'])}"
    )


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a constant would score, how the round was selected, and what the run cost."""
    metric = summary["metric"]
    show = formatter(metric)
    return [
        *(
            f"{TITLES[kind]}: {label(metric)} {show(block[summary['headline']])}"
            for kind, block in summary.get("constants", {}).items()
        ),
        f"selected: {summary['selection']}",
        f"{number(summary['bytes_up'] / 1e6).text} MB up, {number(summary['bytes_down'] / 1e6).text} MB down,"
        f" {summary['gradients']:,} gradients, {summary['seconds']:,.1f} s",
    ]


def summary_warnings(summary: Mapping[str, Any]) -> list[str]:
    """What was left out: uploads, and clients' scores in the selected and in the last round."""
    metric = summary["metric"]
    lines = [f"{describe_refusals(summary['refusals'])}."] if summary["refused"] else []
    if summary.get("dropped") or summary.get("late"):
        lines.append(
            f"{summary['dropped']} times a client dropped out of a round, and {summary['late']} uploads came too late."
        )
    for name in ("selected", "last") if summary.get(metric) else ():
        scores = summary[metric][name]
        missing = scores["clients"] - scores["scored"] - scores["undefined"]
        if words := describe_left_out(scores["undefined"], missing, scores["clients"], metric):
            lines.append(f"{name} round: {words}.")
    return lines


def describe_parameters(networks: Sequence[Mapping[str, int]]) -> str:
    """How many parameters the networks have, and how many of them are trained.

    >>> describe_parameters([{"parameters": 1200, "trained": 1200}, {"parameters": 5000, "trained": 200}])
    '1,200 parameters; 200 of 5,000 parameters are trained, the others are frozen'
    """
    texts = {
        f"{network['parameters']:,} parameters"
        if network["trained"] == network["parameters"]
        else f"{network['trained']:,} of {network['parameters']:,} parameters are trained, the others are frozen": None
        for network in networks
    }
    return "; ".join(texts)


def describe_left_out(undefined: int, missing: int, clients: int, metric: str) -> str:
    """How many clients' scores at the selected round are left out, and why; empty if none are.

    >>> describe_left_out(1, 0, 6, "auc"), describe_left_out(0, 2, 6, "auc"), describe_left_out(0, 0, 6, "auc")
    ('the auc of 1 of 6 clients is undefined and left out', '2 of 6 clients were not scored and are left out', '')
    """
    parts = []
    if undefined:
        parts.append(f"the {metric} of {undefined} of {clients} clients is undefined and left out")
    if missing:
        parts.append(f"{missing} of {clients} clients were not scored and are left out")
    return "; ".join(parts)


def describe_refusals(refusals: Mapping[str, int]) -> str:
    """How many uploads were left out, and why.

    >>> describe_refusals({"not finite": 3, "not declared by the method": 1})
    '4 uploads were left out: 3 not finite, 1 not declared by the method'
    """
    total = sum(refusals.values())
    reasons = ", ".join(f"{count} {kind}" for kind, count in refusals.items())
    return f"{total} upload{'s were' if total != 1 else ' was'} left out: {reasons}"


def _scores_table(title: str, block: Mapping[str, Any], metric: str) -> Table:
    rows = [
        (_text(ROUNDS[name]), Cell(str(scores["round"]), scores["round"]), *_spread_cells(scores, metric))
        for name, scores in block.items()
    ]
    return _table(title, ("round of", "round"), rows)


def _spread_cells(scores: Mapping[str, Any], metric: str) -> tuple[Cell, ...]:
    return tuple(score_cell(scores[key], metric) for key in KEYS.values())


def _table(title: str, first: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table("scores", title, "", tuple(map(Column, (*first, *KEYS))), tuple(rows))


def _text(text: str) -> Cell:
    return Cell(text, text)
