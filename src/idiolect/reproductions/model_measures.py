"""Measures of what models of a finished run are like, layer by layer. They load the run, and some train every client
for one more round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..analysis import cluster_by_ward, mean_gain
from ..contract import Batch
from ..core.tree import Tree
from .measures import FinishedRun, measure

if TYPE_CHECKING:
    from ..runs import Result

GATE = "pfedgate.gate"
MANY = 20
"""At most so many clients are trained once more."""


@contextmanager
def opened(run: FinishedRun) -> Iterator[Result]:
    """The run as a result, with its data."""
    from ..runs import load

    result = load(run.folder)
    try:
        result.plan_with_data()
        yield result
    finally:
        result.store.close()


# -- how alike layers are (FLAYER, figure 2) ------------------------------------------------------------


@measure
def body_above_head(run: FinishedRun) -> float:
    """How much more alike clients' models are below the head than in it, by CKA, right after local training."""
    *body, head = compare_layers(run, "trained")
    return sum(body) / len(body) - head if body else math.nan


@measure
def body_growth(run: FinishedRun) -> float:
    """How much more alike clients' models are below the head at the selected round than after the first."""
    *trained, _ = compare_layers(run, "trained")
    *first, _ = compare_layers(run, "first")
    return (sum(trained) - sum(first)) / len(first) if first else math.nan


def compare_layers(run: FinishedRun, models: str) -> list[float]:
    """The mean CKA of each layer over pairs of clients, first to last."""
    from ..report import layer_similarity  # with matplotlib, which few claims need

    with opened(run) as result:
        return list(layer_similarity(result, models).values())


# -- what a personal layer gains (FedLAG, lemma 5.2) ----------------------------------------------------


class Gain(NamedTuple):
    """By how much the mean training loss is lower where a layer keeps its own update than where it takes the mean one:
    to first order by the lemma, and measured."""

    predicted: float
    measured: float


@measure
def least_layer_gain(run: FinishedRun) -> float:
    """The measured gain of the layer that gains least."""
    return min(gain.measured for gain in layer_gains(run).values())


@measure
def gain_agreement(run: FinishedRun) -> float:
    """The rank correlation over layers between the lemma's gain and the measured one."""
    gains = layer_gains(run).values()
    return rank_correlation([gain.predicted for gain in gains], [gain.measured for gain in gains])


@measure
def conflict_agreement(run: FinishedRun) -> float:
    """The rank correlation over layers between conflicts in the whole run and the measured gain."""
    gains = layer_gains(run)
    counts = {name: float(run.records(f"conflicts/{name}")["value"].sum() or 0) for name in gains}
    return rank_correlation(list(counts.values()), [gain.measured for gain in gains.values()])


def layer_gains(run: FinishedRun) -> Mapping[str, Gain]:
    """The gains of every layer with parameters, from the selected round trained once more by some clients, all layers
    else being each client's own."""
    from ..report.figures.similarity import choose_clients, retrain

    with opened(run) as result:
        plan = result.plan
        chosen = choose_clients(result, MANY)
        model_of = retrain(result, first=False)
        models = [model_of(index)["params"] for index in chosen]
        start = result.personal_slots(chosen[0])["params"]  # the shared model: all clients of FedAvg have the same
        steps = [math.ceil(len(plan.data.clients[index].train) / plan.training.batch_size) for index in chosen]
        scale = 1 / (plan.training.lr * max(1.0, float(np.mean(steps)) * plan.training.epochs))
        own = [training_loss(result, index, model) for index, model in zip(chosen, models, strict=True)]
        gains = {}
        for unit in plan.tasks[0].units:
            if not unit.params:
                continue
            mean = {name: torch.stack([model[name] for model in models]).mean(0) for name in unit.params}
            shared = [
                training_loss(result, index, {**model, **mean}) for index, model in zip(chosen, models, strict=True)
            ]
            updates = [torch.cat([(model[n] - start[n]).flatten() for n in unit.params]) for model in models]
            gains[unit.name] = Gain(mean_gain(updates, scale), float(np.mean(shared) - np.mean(own)))
        return gains


def training_loss(result: Result, index: int, params: Tree) -> float:
    """The loss of a client's training data under some parameters."""
    plan = result.plan
    x, y = plan.split(index, "train")
    task = plan.task_of(index)
    with torch.no_grad():
        scored = task.loss(params, task.initial["buffers"], Batch(x, y, torch.ones(len(x))))
    return float(scored.loss)


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's correlation of two lists; NaN where one of them is constant.

    >>> rank_correlation([1.0, 5.0, 9.0], [0.1, 0.3, 0.2])
    0.5
    """
    from scipy.stats import rankdata

    x, y = rankdata(a), rankdata(b)
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return math.nan
    return round(float(np.corrcoef(x, y)[0, 1]), 12)


# -- clients by their gates (pFedGate, figure 4) --------------------------------------------------------


@measure
def labels_of_near_gates(run: FinishedRun) -> float:
    """How much more labels two clients have in common that Ward's method joins first, as the nearest by their gating
    networks, than two clients have on average, as the share of common labels among those that one of them has."""
    with opened(run) as result:
        states = result.store.clients(result.plan.data.seen, result.store.fact("selected"))
        ids = [index for index, state in states.items() if state is not None and GATE in state]
        if len(ids) < 2:
            return math.nan
        gates = [{n: leaf for n, leaf in (states[i] or {})[GATE].items() if leaf.is_floating_point()} for i in ids]
        labels = [set(label_list(result.plan.data.clients[i].y)) for i in ids]
    merges = cluster_by_ward(gates)
    joined = [(int(a), int(b)) for a, b, *_ in merges if a < len(ids) and b < len(ids)]
    pairs = [(a, b) for a in range(len(ids)) for b in range(a)]
    return float(np.mean([overlap(labels[a], labels[b]) for a, b in joined])) - float(
        np.mean([overlap(labels[a], labels[b]) for a, b in pairs])
    )


def label_list(y: Tensor) -> list[int]:
    """The labels that occur."""
    return sorted(set(y.flatten().tolist()))


def overlap(a: set[int], b: set[int]) -> float:
    """The share of common ones of all.

    >>> overlap({1, 2}, {2, 3})
    0.3333333333333333
    """
    return len(a & b) / len(a | b)
