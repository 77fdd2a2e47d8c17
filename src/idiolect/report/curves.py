"""The curves of a study as charts of a page."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl

from ..core.tables import formatter, label
from .charts import Chart, Line
from .figures.curves import explain_curves
from .scores import AXES, common_target, mean_curve
from .study import Study


def curve_charts(study: Study, share: float) -> list[Chart]:
    """Test scores over rounds, bytes and seconds."""
    several, target = len(study.seeds) > 1, study.scale * common_target(study, share)
    charts = []
    for axis, x_label in list(AXES.items())[len(study.methods) == 1 :]:  # a single run has a chart over rounds
        lines = []
        for method in study.methods:
            at, mean, low, high = mean_curve(study, method, axis)
            lines.append(Line(method, at, mean, low if several else (), high if several else ()))
        chart = _chart(study, f"curve-{axis}", f"Test {study.metric} over {axis}", "", x_label, lines, target)
        charts.append(replace(chart, caption=explain_curves(study, share, chart.has_mark)))
    return charts


def run_chart(study: Study) -> Chart:
    """One method's scores on test and validation data, and how test scores spread over clients."""
    run, metric = study.first(study.methods[0]), study.metric
    scores = run.metrics.filter(cohort="seen", point=run.summary["point"], metric=metric)
    scores = scores.filter(pl.col("value").is_finite() & (pl.col("samples") > 0))
    lines = []
    for split, name in (("test", "test"), ("val", "validation")):
        rounds = scores.filter(split=split).group_by("round").agg(pl.col("value"), pl.col("samples")).sort("round")
        at, means, low, high = [], [], [], []
        for round, values, samples in rounds.select("round", "value", "samples").iter_rows():
            weights = samples if run.summary["headline"] == "weighted" else None
            at.append(float(round))
            means.append(study.scale * float(np.average(values, weights=weights)))
            ends = study.scale * np.percentile(values, (10, 90))
            low.append(float(ends[0]))
            high.append(float(ends[1]))
        lines.append(Line(name, at, means, low if split == "test" else (), high if split == "test" else ()))
    caption = (
        f"Mean over clients, seed {run.seed}; the band reaches from the 10th to the 90th percentile of clients' test"
        f" scores. Round {run.selected} is selected."
    )
    return _chart(study, "course", f"Test and validation {metric}", caption, "round", lines, math.nan)


def _chart(study: Study, name: str, title: str, caption: str, x_label: str, lines: list[Line], mark: float) -> Chart:
    show = formatter(study.metric)
    return Chart(
        name,
        title,
        caption,
        x_label,
        f"test {label(study.metric)}" if name != "course" else label(study.metric),
        lines,
        lambda value: show(value / study.scale),
        mark,
        per_line=x_label != "round",
    )
