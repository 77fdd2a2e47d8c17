"""Numbers of a finished run that a claim is about, by name: its score, what it costs, and what it recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.folder import METRICS

if TYPE_CHECKING:
    import polars as pl

LAST = 10
"""How many rounds at the end of a run make its final state."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that is complete: its folder and its summary."""

    folder: Path
    summary: Mapping[str, Any]

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """Everything that was measured and recorded, round by round."""
        import polars as pl

        return pl.read_parquet(self.folder / METRICS)

    def selected(self, name: str | None = None, block: str | None = None) -> float:
        """A number over clients at the selected round; the headline of the headline metric unless another is named."""
        scores = self.summary.get(block or self.summary["metric"], {}).get("selected", {})
        return float(scores.get(name or self.summary["headline"], math.nan))

    @cached_property
    def client_scores(self) -> dict[int, float]:
        """The headline metric's test score of every client that trains, at the selected round."""
        import polars as pl

        metric = self.summary["metric"]
        at = self.summary[metric]["selected"]["round"]
        rows = self.metrics.filter(
            (pl.col("split") == "test")
            & (pl.col("metric") == metric)
            & (pl.col("cohort") == "seen")
            & (pl.col("point") == self.summary["point"])
            & (pl.col("round") == at)
            & pl.col("value").is_finite()
        )
        return dict(zip(rows["client"].to_list(), rows["value"].to_list(), strict=True))

    def records(self, prefix: str) -> pl.DataFrame:
        """What the method recorded under names that start so."""
        table = self.metrics
        return table.filter(table["metric"].str.starts_with(prefix))


Measure = Callable[[FinishedRun], float]
MEASURES: dict[str, Measure] = {}


def measure(function: Measure) -> Measure:
    """Make a function known by its name."""
    MEASURES[function.__name__] = function
    return function


# -- scores -----------------------------------------------------------------------------------------------


@measure
def score(run: FinishedRun) -> float:
    """The test score at the round that validation selects."""
    return run.selected()


@measure
def bottom_decile(run: FinishedRun) -> float:
    """That of the clients' bottom decile."""
    return run.selected("bottom_decile")


@measure
def unseen(run: FinishedRun) -> float:
    """That of clients that never trained."""
    return run.selected(block="unseen")


@measure
def generalization_gap(run: FinishedRun) -> float:
    """How much clients that trained are above those that did not."""
    return run.selected() - run.selected(block="unseen")


@measure
def personal_gain(run: FinishedRun) -> float:
    """How much the personal models are above the shared one itself."""
    return run.selected() - run.selected(block="global")


# -- costs ------------------------------------------------------------------------------------------------


@measure
def seconds_per_round(run: FinishedRun) -> float:
    """Seconds of a round, of this program on the machine it ran on."""
    return float(run.summary["seconds"]) / int(run.summary["rounds_done"])


@measure
def memory(run: FinishedRun) -> float:
    """The largest memory of the process, in megabytes."""
    return float(run.summary["peak_memory_mb"])


@measure
def megabytes_up(run: FinishedRun) -> float:
    """What all clients sent, in megabytes."""
    return float(run.summary["bytes_up"]) / 1e6


@measure
def rounds_to_80(run: FinishedRun) -> float:
    """The first round with 80 % of the run's best validation score."""
    return first_round(run, 0.8)


@measure
def rounds_to_90(run: FinishedRun) -> float:
    """The first round with 90 % of the run's best validation score."""
    return first_round(run, 0.9)


@measure
def seconds_to_90(run: FinishedRun) -> float:
    """The seconds until then."""
    return first_round(run, 0.9) * seconds_per_round(run)


def first_round(run: FinishedRun, share: float) -> float:
    """The first round, counted from 1, whose validation score reaches a share of the run's best."""
    import polars as pl

    point, metric = run.summary["point"], run.summary["metric"]
    table = run.metrics.filter(
        (pl.col("split") == "val")
        & (pl.col("metric") == metric)
        & (pl.col("cohort") == "seen")
        & (pl.col("point") == point)
    )
    mean = (pl.col("value") * pl.col("samples")).sum() / pl.col("samples").sum()
    curve = table.filter(pl.col("value").is_finite()).group_by("round").agg(mean.alias("score")).sort("round")
    if curve.is_empty():
        return math.nan
    reached = curve.filter(pl.col("score") >= share * pl.col("score").max())
    return float(reached["round"][0])


# -- what methods record ----------------------------------------------------------------------------------


@measure
def conflicts(run: FinishedRun) -> float:
    """Pairs of clients with conflicting updates, in all layers together, per round."""
    return float(run.records("conflicts/")["value"].sum() or 0) / int(run.summary["rounds_done"])


@measure
def settled_units(run: FinishedRun) -> float:
    """The share of units that keep their side from one round to the next, in the last ten rounds."""
    table = run.records("stable_units/")
    return average(table.filter(table["round"] > int(run.summary["rounds_done"]) - LAST))


@measure
def ratio_decline(run: FinishedRun) -> float:
    """How much LG-Mix's ratio is higher in the first ten rounds than in the last ten, mean over clients."""
    table = run.metrics.filter(run.metrics["metric"] == "lambda")
    rounds = int(run.summary["rounds_done"])
    early, late = table.filter(table["round"] <= LAST), table.filter(table["round"] > rounds - LAST)
    return average(early) - average(late)


def average(table: pl.DataFrame) -> float:
    """The mean of what a table's rows recorded; NaN of none."""
    values = table["value"].to_list()
    return sum(values) / len(values) if values else math.nan


@measure
def sent_share(run: FinishedRun) -> float:
    """The share of the model's parameters that clients send, as the method recorded it, over all rounds."""
    return average(run.metrics.filter(run.metrics["metric"] == "sent"))
