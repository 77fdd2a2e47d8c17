"""Ratios measured inside one run: every contestant does one round in turn, again and again, and each round is divided
by the round of the yardstick beside it. Machines are noisy; such pairs are not."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table


class Contestant(Protocol):
    """Something that does rounds."""

    def round(self) -> float:
        """Seconds of one round."""
        ...


def interleaved(contestants: Mapping[str, Contestant], pairs: int) -> dict[str, list[float]]:
    """Seconds of each contestant's rounds, taken in turn, after one round of warming up."""
    for each in contestants.values():
        each.round()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(pairs):
        for name, each in contestants.items():
            seconds[name].append(each.round())
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """The median of paired ratios, with a distribution-free interval of about 95 %."""
    ratios = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    # Order statistics of the binomial: for 9 pairs the 2nd and 8th enclose the median with 96 %.
    skip = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    return {"median": statistics.median(ratios), "low": ratios[skip], "high": ratios[-1 - skip], "pairs": len(ratios)}


def show(title: str, rows: list[dict[str, Any]], out: Path | None = None) -> None:
    """Print rows as a table, and keep them as JSON."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"title": title, "rows": rows}, indent=2))
