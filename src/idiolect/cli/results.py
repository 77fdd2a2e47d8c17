"""What came of runs, on the screen: the scores and costs of one run, and the leaderboard of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..comparison import Comparison
from ..comparison.tables import footnotes, leaderboard_tables, protocol_lines
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
