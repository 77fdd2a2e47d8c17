"""A comparison as text: tables with their protocol for the screen, for Markdown and for CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import write_text
from ..core.tables import Show, probability, shower
from .leaderboard import Comparison, LeaderboardRow, plain
from .statistics import Interval


@dataclass(frozen=True)
class Grid:
    """A table as text: a title, the heads of its columns and its rows; the first column is a name."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(comparison: Comparison) -> tuple[Grid, ...]:
    """The leaderboard: scores and, in a second table, differences to the baseline and costs."""
    protocol = comparison.protocol
    show = shower(protocol["metric"])
    unit = " (%)" if protocol["metric"] == "accuracy" else ""
    lower = " (lower is better)" if protocol["direction"] == "lower" else ""
    scores = Grid(
        f"{protocol['metric']}{unit}{lower}",
        ("method", "selected", "last", "best", "bottom decile", "worst", "std"),
        tuple(
            (
                each.method + ("†" if each.point == "adapted" else ""),
                _with_half(each.selected, show),
                *map(show, (each.last.mean, each.best.mean, each.bottom_decile, each.worst, each.std)),
            )
            for each in comparison.rows
        ),
    )
    costs = Grid(
        f"difference to {protocol['baseline']}, and cost per run",
        ("method", "difference [95 %]", "p", "Holm", "MB up/down", "steps", "s"),
        tuple(_cost_row(each, show) for each in comparison.rows),
    )
    if all(each.unseen is None for each in comparison.rows):
        return scores, costs
    unseen = tuple((each.method, _with_half(each.unseen, show)) for each in comparison.rows if each.unseen)
    title = f"clients that never trained: {protocol['metric']}{unit}"
    return scores, costs, Grid(title, ("method", "selected"), unseen)


def _with_half(held: Interval, show: Show) -> str:
    return f"{show(held.mean)}" + ("" if math.isnan(held.half) else f" ± {show(held.half)}")


def _cost_row(each: LeaderboardRow, show: Show) -> tuple[str, ...]:
    versus = each.versus
    if versus is None:
        cells = ("baseline", "", "")
    elif math.isnan(versus.low):
        cells = (f"{show(versus.difference, sign=True)} (one seed)", "", "")
    else:
        bounds = f"{show(versus.difference, sign=True)} [{show(versus.low)}, {show(versus.high)}]"
        cells = (bounds, probability(versus.p), probability(each.p_holm))
    steps = f"{each.relative_steps:.2f}" + ("*" if each.needs_more_steps else "")
    traffic = "/".join(f"{mb:,.1f}" if mb < 100 else f"{mb:,.0f}" for mb in (each.mb_up, each.mb_down))
    return (each.method, *cells, traffic, steps, f"{each.seconds:,.1f}")


def verdict(summary: Mapping[str, Any]) -> str:
    """A run's score and time in a few words."""
    metric = summary["metric"]
    score = shower(metric)(summary[metric]["selected"]["weighted"])
    return f"{metric} {score}{' %' * (metric == 'accuracy')}, {summary['seconds']:.1f} s"


def protocol_lines(comparison: Comparison) -> list[str]:
    """Under which conditions the numbers hold, in sentences."""
    held = comparison.protocol
    seeds, hashes = held["seeds"], held["partition"]["hashes"]
    several = ", ".join(f"{hashes[str(seed)]} (seed {seed})" for seed in seeds)
    epochs = f"{held['local_epochs']} local epoch{'s' * (held['local_epochs'] != 1)}"
    lines = [
        f"Data: {held['data']}, {held['partition']['clients']} clients, {held['partition']['name']};"
        f" partition {several if len(set(hashes.values())) > 1 else next(iter(hashes.values()))}.",
        f"Training: {held['rounds']} rounds, participation {held['participation']:g}, {epochs},"
        f" batch size {held['batch_size']}, rate {held['lr']:g}, {held['optimizer']}; model {held['model']}.",
        f"Score: test {held['metric']} of all clients' personal models, weighted by samples; selected is the round with"
        f" {_selection(held['selection'])}, best the round with the best test score, which is optimistic.",
        "Seeds: "
        + ", ".join(map(str, seeds))
        + "; the same partition, initial weights and sampled clients for every method"
        + ("; ± is the 95 % Student interval over seeds." if len(seeds) > 1 else "; one seed, so no intervals."),
    ]
    if rates := held.get("rates"):
        lines.append("Own rates: " + ", ".join(f"{name} {rate:g}" for name, rate in rates.items()) + ".")
    if len(seeds) > 1 and len(comparison.rows) > 1:
        lines.append(
            f"Differences to {held['baseline']} are paired by seed: 95 % Student interval, p of the paired t-test,"
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
    for grid in grids(comparison):
        ruler = ("---", *("---:" for _ in grid.heads[1:]))
        rows = "\n".join(f"| {' | '.join(row)} |" for row in (grid.heads, ruler, *grid.rows))
        parts.append(f"**{grid.title[0].upper()}{grid.title[1:]}**\n\n{rows}")
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


def _flat(held: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under joined names; what is not a number is left empty."""
    flat: dict[str, Any] = {}
    for name, value in held.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": each for key, each in _flat(value).items()}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return {k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in flat.items()}
