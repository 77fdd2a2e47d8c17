"""How alike clients' models see the same samples, layer by layer: those that predict, and those that clients have right
after training, which a run does not keep and which are trained again here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...analysis import cka_matrix, compress_features
from ...core.errors import InputError, OptionError
from ...core.names import picture_text
from ...core.tree import Slots
from ...engines import Loop, Plan
from ...engines.client_round import train_model
from ...engines.slots import first_server
from ...runs.result import Result, find_round
from ...runs.round_loop import RoundLoop
from ...runs.store import Store
from ...task.task import Task
from ..study import Study
from .picture import HEIGHT, WHOLE, Picture, add_legend, line_style, make_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_MODELS = 40
"""Of more clients than this, pictures compare so many, evenly spread."""
SAMPLES = 240
MODELS = ("personal", "first", "trained")


def layer_similarity(
    result: Result, models: str = "personal", samples: int = SAMPLES, clients: Sequence[int | str] | None = None
) -> dict[str, float]:
    """How alike clients' models see the same test samples: of every unit, the mean CKA over all pairs of clients.

    Args:
        result: a run, finished or not.
        models: `personal`, what clients predict with at the selected round; `first`, what they have right after
            training in the first round; `trained`, what they have right after training once more from the selected
            round, with its batches and learning rate. The last two train every client for a round.
        samples: about so many test samples, alike from every client that has some.
        clients: names or positions; all that take part by default. All need the same network.

    Returns:
        The units with parameters that the model calls as modules, first to last, each with a number in [0, 1].

    Example:
        >>> import idiolect
        >>> result = idiolect.run("fedavg", clients=4, rounds=2, model="linear")
        >>> {unit: round(value, 3) for unit, value in layer_similarity(result).items()}
        {'fc1': 1.0}
        >>> layer_similarity(result, "trained")["fc1"] < 1
        True

    Reference:
        FLAYER, figure 2; Kornblith et al., ICML 2019.
    """
    if models not in MODELS:
        raise OptionError(f"models={models!r} is not allowed; choose {', '.join(MODELS)}")
    plan = result.plan
    chosen = choose_clients(result, len(plan.data.clients)) if clients is None else [result.index(c) for c in clients]
    if len(chosen) < 2:
        raise InputError(f"there is {len(chosen)} client to compare, but similarity needs two; name at least two")
    if len({plan.networks[index] if plan.networks else 0 for index in chosen}) > 1:
        raise InputError("the clients have different networks, whose layers are not the same; name clients with one")
    x = pick_test_samples(plan, chosen, samples)
    model_of = result.personal_slots if models == "personal" else retrain(result, first=models == "first")
    features = []
    for index in chosen:
        with torch.random.fork_rng(devices=[]):
            outputs = unit_outputs(plan, index, model_of(index), x)
        features.append({unit: compress_features(output) for unit, output in outputs.items()})
    units = [unit for unit in features[0] if all(unit in outputs for outputs in features)]
    pairs = torch.triu_indices(len(chosen), len(chosen), offset=1)
    return {unit: float(cka_matrix([each[unit] for each in features])[pairs[0], pairs[1]].mean()) for unit in units}


def similarity_picture(study: Study, watch: Callable[[str], None] = lambda _: None) -> Picture | None:
    """A line per method over the units, in the first round and from the selected one; none where nothing can be had."""
    found: dict[str, dict[str, dict[str, float]]] = {"first": {}, "trained": {}}
    for method in study.methods:
        with study.result(method) as result:
            if result is None:
                continue
            watch(f"models of {method} right after training")
            try:
                for models, by_method in found.items():
                    by_method[method] = layer_similarity(result, models, clients=choose_clients(result, MANY_MODELS))
            except InputError as error:
                study.notes.append(f"How alike local models of {method} are is left out: {error}.")
    units = list(dict.fromkeys(unit for by_unit in found["trained"].values() for unit in by_unit))
    if not units:
        return None

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, models, title in zip(panels, found, ("first round", "selected round"), strict=True):
            for place, method in enumerate(study.methods):
                if by_unit := found[models].get(method):
                    values = [by_unit.get(unit, np.nan) for unit in units]
                    axes.plot(range(len(units)), values, marker="o", markersize=3, **line_style(place, study.methods))
            axes.set_title(title)
            axes.set_xlabel("unit, first to last")
            axes.set_ylim(0, 1.02)
            axes.set_xticks(range(len(units)), [picture_text(unit) for unit in units])
            axes.tick_params(axis="x", rotation=90 if len(units) > 5 else 0)
        panels[0].set_ylabel("CKA, mean over pairs of clients")
        add_legend(figure, panels[1])

    caption = (
        f"Linear CKA of each unit's outputs on the same test samples, about {SAMPLES} of all clients, between the"
        " models that clients have right after local training: in the first round, and trained once more from the"
        f" selected round. Mean over pairs of clients, seed {study.seeds[0]}."
    )
    return make_picture(
        "models-local-cka", "How alike local models see the same samples", caption, paint, (WHOLE, HEIGHT)
    )


# -- which clients and samples --------------------------------------------------------------------------


def choose_clients(result: Result, most: int) -> list[int]:
    """Seen clients with the first network, evenly spread if there are many."""
    plan = result.plan
    same = [
        index
        for index in plan.data.seen
        if not plan.networks or plan.networks[index] == plan.networks[plan.data.seen[0]]
    ]
    return [same[int(place)] for place in np.linspace(0, len(same) - 1, min(most, len(same))).round()]


def pick_test_samples(plan: Plan, clients: Sequence[int], samples: int) -> Tensor:
    """Test samples of some clients, of each as many, those first in its data."""
    parts = [x for index in clients if len(x := plan.split(index, "test")[0])]
    if not parts:
        raise InputError("none of the clients has test samples to compare their models on; split some off")
    return torch.cat([x[: -(-samples // len(parts))] for x in parts])


# -- models right after training ------------------------------------------------------------------------


def retrain(result: Result, first: bool) -> Callable[[int], Slots]:
    """What gives a client's model right after a round's training: the first round's, after those that set a method up,
    or once more that of the selected round, from the state that it left."""
    plan, store = result.plan, result.store
    at = find_round(store.facts, None)
    round = max(0, store.facts.rounds_done - 1) if at is None else at
    if first:
        store, at, round = Store(None), None, 0
        loop = RoundLoop(plan, Loop(plan), store)
        loop.run(stop=lambda: loop.first_round >= 0)
    server = store.server(at) or first_server(plan.server(round))

    def train(index: int) -> Slots:
        download = plan.method.download(plan.server(round), server, (index,)).of(index)
        return train_model(plan, index, round, store.clients([index], at)[index], download)

    return train


# -- what units give ------------------------------------------------------------------------------------


def units_of(task: Task) -> dict[str, Sequence[str]]:
    """The parameters of every unit that has some."""
    return {unit.name: unit.params for unit in task.units if unit.params}


@torch.no_grad()
def unit_outputs(plan: Plan, client: int, model: Slots, x: Tensor) -> dict[str, Tensor]:
    """What every unit of a client's model gives for some samples."""
    ctx = plan.context(client, plan.rounds - 1, newcomer=False)
    parts: dict[str, list[Tensor]] = {}
    for batch in torch.split(x, plan.method.needs.eval_batch or len(x)):
        with record_outputs(ctx.task) as outputs:
            plan.method.predict(ctx, model, batch)
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
