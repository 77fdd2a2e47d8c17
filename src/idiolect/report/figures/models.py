"""Personal models, compared: how far they are from the global one and how alike they see the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...analysis import cka_matrix, unit_distances
from ...core import tree
from ...core.tree import Slots, Tree
from ...runs.result import Result
from ...task.task import Task
from ..study import Study
from .picture import WIDTH, Picture, draw_heatmap, make_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_MODELS = 40
"""Of more clients than this, so many are compared, evenly spread."""
FEW_MODELS = 10
"""As many are compared pair by pair."""
SAMPLES = 240


def model_pictures(study: Study) -> list[Picture]:
    """Two heat maps, methods against units; none where the models cannot be had."""
    distances: dict[str, dict[str, float]] = {}
    likeness: dict[str, dict[str, float]] = {}
    for method in study.methods:
        with study.result(method) as result:
            if result is not None:
                distances[method] = mean_distances(result)
                likeness[method] = mean_likeness(result)
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
            f"Linear CKA of each unit's outputs on {SAMPLES} training samples of several clients, mean over pairs of"
            f" clients, seed {seed}; 1 is equal up to rotation and scale.",
            "CKA",
            likeness,
            high=1.0,
        ),
    ]
    return [picture for picture in pictures if picture is not None]


def _make_unit_picture(
    name: str, title: str, caption: str, label: str, by_method: dict[str, dict[str, float]], high: float | None = None
) -> Picture | None:
    units = list(dict.fromkeys(unit for each in by_method.values() for unit in each))
    if not units:
        return None
    values = [[each.get(unit, np.nan) for unit in units] for each in by_method.values()]
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


def choose_clients(result: Result, most: int) -> list[int]:
    """Seen clients with the first network, evenly spread if there are many."""
    plan = result.plan
    same = [
        index
        for index in plan.data.seen
        if not plan.networks or plan.networks[index] == plan.networks[plan.data.seen[0]]
    ]
    return [same[int(place)] for place in np.linspace(0, len(same) - 1, min(most, len(same))).round()]


def units_of(task: Task) -> dict[str, Sequence[str]]:
    """The parameters of every unit that has some."""
    return {unit.name: unit.params for unit in task.units if unit.params}


def mean_distances(result: Result) -> dict[str, float]:
    """Of every unit, the mean relative distance of personal models from the global one."""
    clients = choose_clients(result, MANY_MODELS)
    task = result.plan.context(clients[0], 0).task
    models = [view["params"] for client in clients if "params" in (view := result.view(client))]
    if not models:
        return {}
    reference = global_model(result, task, models)
    distances = [unit_distances(model, reference, units_of(task)) for model in models]
    units = [unit for unit in units_of(task) if any(unit in each for each in distances)]
    return {unit: float(np.mean([each[unit] for each in distances if unit in each])) for unit in units}


def global_model(result: Result, task: Task, models: Sequence[Tree]) -> Tree:
    """The server's parameters at the selected round; the mean of the personal ones if they never moved."""
    params = result.store.server(result.store.fact("selected")).get("params", {})
    initial = task.initial["params"]
    moved = any(name in initial and not torch.equal(leaf, initial[name]) for name, leaf in params.items())
    alike = [model for model in models if _shapes(model) == _shapes(models[0])]
    return params if moved else tree.map(lambda leaf: leaf.mean(0), tree.stack(alike))


def _shapes(model: Tree) -> dict[str, torch.Size]:
    return {name: leaf.shape for name, leaf in model.items()}


def mean_likeness(result: Result) -> dict[str, float]:
    """Of every unit, the mean CKA over pairs of clients."""
    clients = choose_clients(result, FEW_MODELS)
    if len(clients) < 2:
        return {}
    plan = result.plan
    each = -(-SAMPLES // len(clients))
    x = torch.cat([plan.split(client, "train")[0][:each] for client in clients])
    features = [unit_outputs(result, client, x) for client in clients]
    above = torch.triu(torch.ones(len(clients), len(clients)), diagonal=1) > 0
    shared = [unit for unit in features[0] if all(unit in outputs for outputs in features)]
    return {unit: float(cka_matrix([outputs[unit] for outputs in features])[above].mean()) for unit in shared}


@torch.no_grad()
def unit_outputs(result: Result, client: int, x: Tensor) -> dict[str, Tensor]:
    """What every unit of a client's model gives for some samples."""
    plan = result.plan
    ctx = plan.context(client, plan.rounds - 1, newcomer=False)
    view: Slots = result.view(client)
    parts: dict[str, list[Tensor]] = {}
    for batch in torch.split(x, plan.method.needs.eval_batch or len(x)):
        with record_outputs(ctx.task) as outputs:
            plan.method.predict(ctx, view, batch)
        for unit, output in outputs.items():
            parts.setdefault(unit, []).append(output.flatten(1))
    return {unit: torch.cat(batches) for unit, batches in parts.items() if sum(map(len, batches)) == len(x)}


@contextmanager
def record_outputs(task: Task) -> Iterator[dict[str, Tensor]]:
    """Collect what the units give in a forward pass; of several passes, the last."""
    outputs: dict[str, Tensor] = {}

    def tap(unit: str) -> Any:
        def note(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim > 1:
                outputs[unit] = output.detach()

        return note

    modules = dict(task.net.module.named_modules())
    hooks = [modules[unit].register_forward_hook(tap(unit)) for unit in units_of(task) if unit in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
