"""Personal models, compared: how far they are from the global one and how alike they see the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...analysis import unit_distances
from ...core import tree
from ...core.errors import InputError
from ...core.tree import Tree
from ...runs.result import Result
from ...task.task import Task
from ..study import Study
from .picture import WIDTH, Picture, draw_heatmap, make_picture
from .similarity import MANY_MODELS, SAMPLES, choose_clients, layer_similarity, units_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def model_pictures(study: Study) -> list[Picture]:
    """Two heat maps, methods against units; none where the models cannot be had."""
    distances: dict[str, dict[str, float]] = {}
    likeness: dict[str, dict[str, float]] = {}
    for method in study.methods:
        with study.result(method) as result:
            if result is not None:
                distances[method] = mean_distances(result)
                with suppress(InputError):  # of one client, or without test samples
                    likeness[method] = layer_similarity(result, clients=choose_clients(result, MANY_MODELS))
    seed = study.seeds[0]
    pictures = [
        _make_unit_picture(
            "distance",
            "How far personal models are from the global one",
            "Length of the difference of a client's parameters from the server's, relative to the server's, at the"
            f" selected round; mean over clients, seed {seed}. Where the server's model never moved, the mean of all"
            " personal models stands for it.",
            "relative distance",
            distances,
        ),
        _make_unit_picture(
            "cka",
            "How alike personal models see the same samples",
            f"Linear CKA of each unit's outputs on the same test samples, about {SAMPLES} of all clients, mean over"
            f" pairs of clients, seed {seed}; 1 is equal up to rotation and scale.",
            "CKA",
            likeness,
            high=1.0,
        ),
    ]
    return [picture for picture in pictures if picture is not None]


def _make_unit_picture(
    name: str, title: str, caption: str, label: str, by_method: dict[str, dict[str, float]], high: float | None = None
) -> Picture | None:
    units = list(dict.fromkeys(unit for by_unit in by_method.values() for unit in by_unit))
    if not units:
        return None
    values = [[by_unit.get(unit, np.nan) for unit in units] for by_unit in by_method.values()]
    top = float(np.nanmax(np.where(np.isfinite(values), values, np.nan))) if high is None else high

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        written = (lambda value: f"{value:.2f}") if len(units) <= 8 else None
        draw_heatmap(axes, values, label, list(by_method), units, 0, top or 1.0, written=written)
        axes.set_xlabel("unit, first to last")
        if len(units) > 8:
            axes.tick_params(axis="x", rotation=90)

    return make_picture(f"models-{name}", title, caption, paint, (WIDTH, 1.2 + 0.27 * len(by_method)))


# -- what is compared -----------------------------------------------------------------------------------


def mean_distances(result: Result) -> dict[str, float]:
    """Of every unit, the mean relative distance of personal models from the global one."""
    clients = choose_clients(result, MANY_MODELS)
    task = result.plan.context(clients[0], 0).task
    models = [personal["params"] for client in clients if "params" in (personal := result.personal_slots(client))]
    if not models:
        return {}
    reference = global_model(result, task, models)
    distances = [unit_distances(model, reference, units_of(task)) for model in models]
    units = [unit for unit in units_of(task) if any(unit in by_unit for by_unit in distances)]
    return {unit: float(np.mean([by_unit[unit] for by_unit in distances if unit in by_unit])) for unit in units}


def global_model(result: Result, task: Task, models: Sequence[Tree]) -> Tree:
    """The server's parameters at the selected round; the mean of the personal ones if they never moved."""
    params = result.store.server(result.store.fact("selected")).get("params", {})
    initial = task.initial["params"]
    moved = any(name in initial and not torch.equal(leaf, initial[name]) for name, leaf in params.items())
    alike = [model for model in models if _shapes(model) == _shapes(models[0])]
    return params if moved else tree.map(lambda leaf: leaf.mean(0), tree.stack(alike))


def _shapes(model: Tree) -> dict[str, torch.Size]:
    return {name: leaf.shape for name, leaf in model.items()}
