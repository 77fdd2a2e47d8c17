"""Personal models, compared: how far they are from the global one and how alike they see the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...analysis import unit_distances
from ...contract import predicts_its_own_way
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
            "Length of the difference of the parameters with which a client predicts from the server's, relative to the"
            f" server's, at the selected round; mean over clients, seed {seed}. Where the server's never moved, the"
            " mean of all personal models stands for it.",
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
    models = [model for client in clients for model in predicting_models(result, client)]
    if not models:
        return {}
    reference = global_model(result, task, models)
    distances = [unit_distances(model, reference, units_of(task)) for model in models]
    units = [unit for unit in units_of(task) if any(unit in by_unit for by_unit in distances)]
    return {unit: float(np.mean([by_unit[unit] for by_unit in distances if unit in by_unit])) for unit in units}


def predicting_models(result: Result, client: int) -> list[Tree]:
    """The parameters with which a client predicts: those of its personal model or, where a method makes others of them
    for what it predicts (as through gates), the mean of these over the client's test samples; empty if it has none."""
    personal, plan = result.personal_slots(client), result.plan
    x = plan.split(client, "test")[0][:SAMPLES]
    if predicts_its_own_way(plan.method) and len(x):
        ctx = plan.context(client, plan.rounds - 1, newcomer=False)

        def run_on(batch: Tensor) -> list[Tree]:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), record_parameters(ctx.task) as passes:
                plan.method.predict(ctx, personal, batch)
            return passes

        if len(run_on(x[:1])) == 1:  # an ensemble, which runs on several models for one sample, has no such mean
            batches = torch.split(x, plan.method.needs.eval_batch or len(x))
            used = [parameters for batch in batches for parameters in run_on(batch)]
            return [tree.map(lambda leaf: leaf.mean(0), tree.stack(used))]
    return [personal["params"]] if "params" in personal else []


@contextmanager
def record_parameters(task: Task) -> Iterator[list[Tree]]:
    """Collect the parameters on which the network runs, one tree for each pass."""
    passes: list[Tree] = []
    names = {name for params in units_of(task).values() for name in params}

    def tap(prefix: str) -> Any:
        def note(module: Any, inputs: Any) -> None:
            leaves = {f"{prefix}.{key}".lstrip("."): leaf for key, leaf in module.named_parameters(recurse=False)}
            known = {name: leaf.detach().clone() for name, leaf in leaves.items() if name in names}
            if not passes or known.keys() & passes[-1].keys():
                passes.append({})
            passes[-1].update(known)

        return note

    hooks = [module.register_forward_pre_hook(tap(name)) for name, module in task.net.module.named_modules()]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


def global_model(result: Result, task: Task, models: Sequence[Tree]) -> Tree:
    """The server's parameters at the selected round; the mean of the personal ones if they never moved."""
    params = result.store.server(result.store.fact("selected")).get("params", {})
    initial = task.initial["params"]
    moved = any(name in initial and not torch.equal(leaf, initial[name]) for name, leaf in params.items())
    alike = [model for model in models if _shapes(model) == _shapes(models[0])]
    return params if moved else tree.map(lambda leaf: leaf.mean(0), tree.stack(alike))


def _shapes(model: Tree) -> dict[str, torch.Size]:
    return {name: leaf.shape for name, leaf in model.items()}
