"""Curves of a run or a comparison in the terminal, while it goes on, drawn as text."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...core.names import shorten_apart, visible
from ...core.tables import Formatter, formatter, label
from ...runs.progress import clock
from ..watched import Curve, Watched, find, mean_curve

HEIGHT, WIDEST = 8, 100
_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def follow(folder: Path, console: Console, every: float = 2.0, once: bool = False, metric: str | None = None) -> None:
    """Draw the curves again and again until all runs are done or Ctrl-C; just once where there is no terminal."""
    runs = find(folder)
    if once or not console.is_terminal:
        console.print(frame(runs, metric))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(frame(runs, metric), refresh=True)
                if all(run.complete for run in runs):
                    return
                time.sleep(every)
                runs = runs if len(runs) == 1 else _find_new(folder, runs)
        except KeyboardInterrupt:
            return


def _find_new(folder: Path, runs: Sequence[Watched]) -> list[Watched]:
    """The runs of a comparison, to which methods and seeds may have been added."""
    known = {run.folder: run for run in runs}
    return [known.get(run.folder, run) for run in find(folder)]


def frame(runs: Sequence[Watched], metric: str | None = None) -> RenderableType:
    """What is seen now: two charts for one run, a line per method for a comparison."""
    for run in runs:
        run.look()
    return _Run(runs[0], metric) if len(runs) == 1 else _Comparison(runs, metric)


# -- drawing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """One run: where it stands, its validation score and its training loss."""

    run: Watched
    metric: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run, metric = self.run, self.run.metric(self.metric)
        state = "done" if run.complete else f"{clock(run.left)} left" if run.done else "not begun"
        yield Text(f"{run.method}  round {run.done}/{run.rounds}  {clock(run.seconds)}  {state}", style="bold")
        height = max(3, min(HEIGHT, console.height // 2 - 4))
        for title, curve, show in (
            (f"validation {visible(label(metric))}", run.score(metric), formatter(metric)),
            ("training loss", run.loss, formatter("loss")),
        ):
            if curve:
                yield Text(f"\n{title}: {show(list(curve.values())[-1])}", style="cyan")
                yield from chart(curve, min(WIDEST, options.max_width - 2), height, show)
            elif run.done:
                yield Text(f"\n{title}: undefined or not measured so far", style="cyan")


@dataclass(frozen=True)
class _Comparison:
    """A comparison: for each method its mean curve over seeds, on one scale for all."""

    runs: Sequence[Watched]
    metric: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        metric = next((run.metric(self.metric) for run in self.runs if run.done), self.metric or "score")
        show = formatter(metric)
        methods: dict[str, list[Watched]] = {}
        for run in self.runs:
            methods.setdefault(run.method, []).append(run)
        curves = {name: mean_curve([run.score(metric) for run in runs]) for name, runs in methods.items()}
        values = [value for curve in curves.values() for value in curve.values() if math.isfinite(value)]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        done = sum(run.complete for run in self.runs)
        rounds = sum(run.done for run in self.runs), sum(run.rounds for run in self.runs)
        yield Text(f"{done}/{len(self.runs)} runs done  round {rounds[0]}/{rounds[1]} of all", style="bold")
        reach = f"from {show(low)} to {show(high)}" if values else "undefined or not measured so far"
        yield Text(f"validation {visible(label(metric))}, mean over seeds, {reach}", style="cyan")
        names = max(8, min(max(map(len, methods)), options.max_width // 3))
        width = max(8, min(WIDEST, options.max_width) - names - 24)
        table = Table.grid(padding=(0, 1))
        for (name, runs), shown in zip(methods.items(), shorten_apart(list(methods), names), strict=True):
            curve = curves[name]
            newest = show(list(curve.values())[-1]) if curve else "–"
            line = spark(curve, max(run.rounds for run in runs), width, low, high)
            stands = f"{sum(run.done for run in runs)}/{sum(run.rounds for run in runs)}"
            table.add_row(
                Text(shown),
                Text(line, style="green"),
                Text(newest),
                Text(stands, "dim"),
            )
        yield table


def spark(curve: Curve, rounds: int, width: int, low: float, high: float) -> str:
    """A curve in one line of blocks from `low` to `high`; rounds that are still to come are blank.

    >>> spark({1: 0.0, 2: 0.5, 4: 1.0}, rounds=8, width=8, low=0.0, high=1.0)
    '▁▅▇█    '
    """
    heights = _heights(curve, rounds, width, low, high, len(_BLOCKS))
    return "".join(" " if height is None else _BLOCKS[height] for height in heights)


def chart(curve: Curve, width: int, height: int, show: Formatter) -> list[Text]:
    """A curve so far in braille dots, two by four in a character, with its scale at the left and the rounds below."""
    rounds = max(curve)
    values = [value for value in curve.values() if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    margin = max(len(show(low)), len(show(high)))
    columns = max(8, width - margin - 1)
    cells = [[0] * columns for _ in range(height)]
    before: int | None = None
    for across, up in enumerate(_heights(curve, rounds, 2 * columns, low, high, 4 * height)):
        if up is not None:
            start = up if before is None else before
            for dot in range(min(start, up), max(start, up) + 1):
                down = 4 * height - 1 - dot
                cells[down // 4][across // 2] |= _DOTS[across % 2][down % 4]
        before = up
    scale = [show(high), *[""] * (height - 2), show(low)]
    lines = [
        f"{mark:>{margin}}┤{''.join(chr(0x2800 + cell) for cell in row)}"
        for mark, row in zip(scale, cells, strict=True)
    ]
    return [Text(line) for line in lines] + [Text(f"{'':{margin}}└1{rounds:─>{columns - 1}}", style="dim")]


def _heights(curve: Curve, rounds: int, width: int, low: float, high: float, levels: int) -> list[int | None]:
    """The level of a curve in each of `width` columns that stand for all rounds; None before its first and after its
    last value. Between values it is a straight line."""
    known = [(round, value) for round, value in sorted(curve.items()) if math.isfinite(value)]
    if not known:
        return [None] * width
    step = (rounds - 1) / (width - 1)
    places = 1 + step * np.arange(width)
    values = np.interp(places, [round for round, _ in known], [value for _, value in known])
    levelled = (values - low) / (high - low) if high > low else np.full(width, 0.5)
    heights = np.clip(levelled * levels, 0, levels - 1).astype(int).tolist()
    inside = (places > known[0][0] - step) & (places < known[-1][0] + max(step, 1e-9))
    return [height if within else None for height, within in zip(heights, inside.tolist(), strict=True)]
