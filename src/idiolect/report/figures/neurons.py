"""What single neurons and channels do at each client, as pictures: mean outputs, how dispersed these are, and what
they make of one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...analysis import neighbour_entropy, neuron_means
from ...core.errors import InputError
from ...core.names import picture_text
from ...core.options import did_you_mean
from ...runs.result import Result
from .picture import NAME, WIDTH, Picture, colour, draw_heatmap, make_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLES = 240
"""Of each client, at most so many training samples are looked at."""


@torch.no_grad()
def layer_outputs(result: Result, client: int, layer: str, x: Tensor) -> Tensor:
    """What a layer of a client's personal model gives for some samples; any module of the network, by its name."""
    plan = result.plan
    ctx = plan.context(client, plan.rounds - 1, newcomer=False)
    modules = {name: module for name, module in ctx.task.net.module.named_modules() if name}
    if layer not in modules:
        raise InputError(f"no layer {layer!r} is here.{did_you_mean(layer, modules)} It has: {', '.join(modules)}.")
    outputs: list[Tensor] = []
    hook = modules[layer].register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    try:
        plan.method.predict(ctx, result.personal_slots(client), x.to(plan.device))
    finally:
        hook.remove()
    if not outputs:
        raise InputError(f"the layer {layer!r} is not called when the model predicts; name another one")
    return outputs[-1]


def neuron_table(result: Result, layer: str) -> Tensor:
    """Mean outputs of a layer's neurons on each client's own training samples, ``[clients, neurons]``."""
    rows = [layer_outputs(result, c, layer, result.plan.split(c, "train", SAMPLES)[0]) for c in result.plan.data.seen]
    return torch.stack([neuron_means(outputs) for outputs in rows])


def neuron_pictures(results: Mapping[str, Result], layer: str, k: int = 3) -> list[Picture]:
    """Mean outputs of a layer's neurons by client, and the entropies of these over clients, for several named runs.

    Args:
        results: runs by what to call them, such as one on equal and one on unequal clients.
        layer: a module of the network, by name; behind an activation function if outputs after it are wanted.
        k: which nearest neighbour the entropy looks at, below the number of clients.
    """
    tables = {name: neuron_table(result, layer) for name, result in results.items()}
    entropies = {name: neighbour_entropy(table, k).numpy() for name, table in tables.items()}
    constant = ", ".join(f"{np.isinf(found).sum()} of {name}" for name, found in entropies.items())

    def maps(figure: Figure) -> None:
        low, high = (float(getattr(torch.cat(list(tables.values())), what)()) for what in ("min", "max"))
        for axes, (name, table) in zip(_panels(figure, len(tables)), tables.items(), strict=True):
            ordered = table[:, table.mean(0).argsort(descending=True)].T
            draw_heatmap(axes, ordered, "mean output", (), range(1, len(table) + 1), low, high)
            axes.set_title(picture_text(name, NAME))
            axes.set_xlabel("client")
        figure.axes[0].set_ylabel(picture_text(f"neurons of {layer}, largest mean first", NAME + 25))

    def histograms(figure: Figure) -> None:
        finite = {name: found[np.isfinite(found)] for name, found in entropies.items()}
        everything = np.concatenate(list(finite.values()))
        bins: Any = np.linspace(everything.min(), everything.max(), 31) if len(everything) else 10
        for place, (axes, (name, found)) in enumerate(
            zip(_panels(figure, len(tables), sharey=True), finite.items(), strict=True)
        ):
            axes.hist(found, bins=bins, color=colour(place))
            axes.set_title(picture_text(name, NAME))
            axes.set_xlabel("entropy over clients (nats)")
        figure.axes[0].set_ylabel("neurons")

    size = (WIDTH * max(1.0, 0.65 * len(tables)), 3.3)
    return [
        make_picture(
            "neurons", "Mean outputs of neurons", f"On up to {SAMPLES} training samples of each client.", maps, size
        ),
        make_picture(
            "neuron-entropies",
            "Entropy of each neuron's mean output over clients",
            f"By the distance to the neighbour number {k}. Left out as equal at all clients or nearly all: {constant}.",
            histograms,
            size,
        ),
    ]


def feature_map_picture(
    results: Mapping[str, Result], client: int, layer: str, sample: Tensor, channels: Mapping[str, Sequence[int]]
) -> Picture:
    """What channels of a convolution make of one sample, at one client, for several named runs.

    Args:
        results: runs by what to call them, a row each.
        client: whose models.
        layer: a module of the network, by name.
        sample: one sample, without a batch dimension.
        channels: which channels, by what to call them, such as personal and shared ones.
    """
    found = {name: layer_outputs(result, client, layer, sample[None])[0] for name, result in results.items()}
    if any(maps.ndim != 3 for maps in found.values()):
        raise InputError(f"the layer {layer!r} gives no maps; name a convolution, or a layer behind one")
    chosen = [(kind, channel) for kind, several in channels.items() for channel in several]
    deepest = min(len(maps) for maps in found.values())
    if wrong := [channel for _, channel in chosen if not 0 <= channel < deepest]:
        raise InputError(f"the layer {layer!r} has no channel {wrong[0]}; its channels are 0 to {deepest - 1}")

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(found), 1 + len(chosen), squeeze=False)
        for row, (name, maps) in zip(panels, found.items(), strict=True):
            _show(row[0], sample.cpu())
            row[0].set_ylabel(picture_text(name, NAME))
            for axes, (kind, channel) in zip(row[1:], chosen, strict=True):
                _show(axes, maps[channel][None].cpu())
                axes.set_title(picture_text(f"{kind} {channel}", NAME), fontsize=7)
        panels[0][0].set_title("sample", fontsize=7)

    size = (0.5 + 0.95 * (1 + len(chosen)), 0.3 + 1.1 * len(found))
    return make_picture("feature-maps", "Feature maps", f"One sample through the layer {layer}.", paint, size)


def _panels(figure: Figure, count: int, sharey: bool = False) -> Sequence[Axes]:
    panels: Sequence[Axes] = figure.subplots(1, count, squeeze=False, sharey=sharey)[0]
    return panels


def _show(axes: Axes, image: Tensor) -> None:
    low, high = image.min(), image.max()
    scaled = ((image - low) / (high - low).clamp_min(1e-12)).movedim(0, -1).numpy()
    axes.imshow(scaled if scaled.shape[-1] == 3 else scaled[..., 0], cmap="gray", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
