"""What came of runs, on the screen: the scores and costs of one run, and the leaderboard of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..comparison import Comparison
from ..comparison.tables import footnotes, leaderboard_tables, protocol_lines
from ..runs.tables import describe_run, summary_lines, summary_tables, summary_warnings
from .screen import paragraph, say, show


def show_comparison(comparison: Comparison) -> None:
    """The protocol, the leaderboard and what its marks mean."""
    for line in protocol_lines(comparison):
        paragraph(line, "dim")
    say()
    for table in leaderboard_tables(comparison):
        show(table.shorten())
    for line in footnotes(comparison):
        paragraph(line, "dim")


def show_result(summary: Mapping[str, Any]) -> None:
    """The scores and the cost of one run."""
    paragraph(describe_run(summary))
    for table in summary_tables(summary):
        show(table)
    for line in summary_lines(summary):
        paragraph(line)
    for line in summary_warnings(summary):
        paragraph(line, "yellow")
