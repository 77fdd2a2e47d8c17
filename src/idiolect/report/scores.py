"""Numbers that tables and figures share: scores of the same clients, and what a method spends
until it reaches a score."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..analysis import first_reaching, target_score
from .study import Run, Study

AXES = {"rounds": "round", "bytes": "MB up and down", "seconds": "seconds"}
"""What scores are drawn over, and the label of that axis."""


class MeanCurve(NamedTuple):
    """A method's scores, as they are shown, over one of the axes: the mean over seeds, and between which they lie."""

    at: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def mean_curve(study: Study, method: str, axis: str) -> MeanCurve:
    """A method's test score over rounds, bytes or seconds."""
    runs = list(study.runs[method].values())
    length = min(len(run.curve.rounds) for run in runs)
    values = study.scale * np.array([run.curve.values[:length] for run in runs], float)
    at = np.mean([axis_positions(run, axis)[:length] for run in runs], axis=0)
    return MeanCurve(*(part.tolist() for part in (at, values.mean(0), values.min(0), values.max(0))))


class TargetCost(NamedTuple):
    """When a method reaches a target, on average over seeds; NaN if not under every seed."""

    rounds: float
    megabytes: float
    seconds: float


def axis_positions(run: Run, axis: str) -> list[float]:
    """The position of each evaluated round on one of the axes."""
    if axis == "rounds":
        return [float(round) for round in run.curve.rounds]
    costs = [run.costs[round] for round in run.curve.rounds]
    return [cost.seconds if axis == "seconds" else (cost.bytes_up + cost.bytes_down) / 1e6 for cost in costs]


def cost_to_reach(study: Study, method: str, target: float) -> TargetCost:
    """How much a method spends, on average over seeds, until its test score first reaches a target."""
    costs = []
    for run in study.runs[method].values():
        place = first_reaching(run.curve.values, target, study.higher)
        costs.append([math.nan if place is None else axis_positions(run, axis)[place] for axis in AXES])
    return TargetCost(*(float(mean) for mean in np.mean(costs, axis=0)))


def best_score(study: Study, method: str) -> float:
    """The best test score over the rounds of a method, on average over seeds."""
    return study.comparison[method].best.mean


def common_target(study: Study, share: float) -> float:
    """A share of the best test score that any method reaches."""
    scores = [best_score(study, method) for method in study.methods]
    scores = [score for score in scores if not math.isnan(score)] or [math.nan]
    return target_score(max(scores) if study.higher else min(scores), share, study.higher)


def paired_scores(study: Study, a: str, b: str) -> tuple[list[float], list[float]]:
    """The scores of two methods on the same clients under the same seeds, where both are defined."""
    pairs = [
        (score, study.runs[b][seed].scores[client])
        for seed, run in study.runs[a].items()
        for client, score in run.scores.items()
        if client in study.runs[b][seed].scores
    ]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    return [a for a, _ in pairs], [b for _, b in pairs]
