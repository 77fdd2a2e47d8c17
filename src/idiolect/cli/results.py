"""What came of runs, on the screen: the scores and costs of one run, and the leaderboard of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..comparison import Comparison
from ..comparison.constants import TITLES
from ..comparison.tables import (
    describe_left_out,
    describe_refusals,
    footnotes,
    leaderboard_tables,
    protocol_lines,
)
from ..core.tables import formatter, label
from .screen import paragraph, say, show_table


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


def parameters(networks: Sequence[Mapping[str, int]]) -> str:
    """How many parameters the networks have, and how many of them are trained.

    >>> parameters([{"parameters": 1200, "trained": 1200}, {"parameters": 5000, "trained": 200}])
    '1,200 parameters; 200 of 5,000 parameters are trained, the others are frozen'
    """
    texts = {
        f"{network['parameters']:,} parameters"
        if network["trained"] == network["parameters"]
        else f"{network['trained']:,} of {network['parameters']:,} parameters are trained, the others are frozen": None
        for network in networks
    }
    return "; ".join(texts)


def show_result(summary: Mapping[str, Any]) -> None:
    """The scores and the cost of one run."""
    metric, partition = summary["metric"], summary["partition"]
    show = formatter(metric)
    paragraph(
        f"{summary['method']} on {summary['data']}, {partition['clients']} clients, {partition['name']}"
        f" (partition {partition['hash']}), seed {summary['seed']},"
        f" {summary['rounds_done']} of {summary['rounds']} rounds; {parameters(summary['networks'])}"
    )
    keys = ("weighted", "mean", "std", "bottom_decile", "worst")
    names = {"selected": "selected", "last": "last", "best": "best (by test, optimistic)"}
    points = {
        label(metric): metric,
        "before adaptation": "before_adaptation",
        "right after local training": "after_local",
        "the shared model itself": "global",
        "unseen clients": "unseen",
    }
    for title, key in points.items():
        if block := summary.get(key):
            rows = [(names[n], str(scores["round"]), *(show(scores[k]) for k in keys)) for n, scores in block.items()]
            heads = ("round of", "round", "weighted", "mean", "std", "bottom decile", "worst")
            show_table(heads, rows, title=title)
    if others := summary.get("others"):
        keys = ("weighted", "mean", "std", "bottom_decile", "worst")
        rows = [(label(name), *(formatter(name)(block[key]) for key in keys)) for name, block in others.items()]
        show_table(("other metrics", "weighted", "mean", "std", "bottom decile", "worst"), rows)
    for kind, block in summary.get("constants", {}).items():
        paragraph(f"{TITLES[kind]}: {label(metric)} {show(block[summary['headline']])}")
    paragraph(f"selected: {summary['selection']}")
    paragraph(
        f"{summary['bytes_up'] / 1e6:,.1f} MB up, {summary['bytes_down'] / 1e6:,.1f} MB down,"
        f" {summary['gradients']:,} gradients, {summary['seconds']:,.1f} s"
    )
    if summary["refused"]:
        paragraph(f"{describe_refusals(summary['refusals'])}.", "yellow")
    if block := summary.get(metric):
        for line in left_out_lines(block, metric):
            paragraph(line, "yellow")


def left_out_lines(block: Mapping[str, Any], metric: str) -> list[str]:
    """What of the selected and of the last round is left out, in sentences."""
    lines = []
    for name in ("selected", "last"):
        scores = block[name]
        missing = scores["clients"] - scores["scored"] - scores["undefined"]
        if words := describe_left_out(scores["undefined"], missing, scores["clients"], metric):
            lines.append(f"{name} round: {words}.")
    return lines
