"""What a client remembers of its gates: their means over the samples of a round, and which coordinates took part."""

from __future__ import annotations

import torch
from torch import Tensor

from ...contract import Slots, Tree, tree


def start(count: int, scale: float, score: float, device: torch.device) -> Tree:
    """The tally of a client that has seen nothing: gates as they are before training."""
    means = {"scale": scale, "score": score, "kept": 1.0}
    numbers = {name: torch.full((count,), value, device=device) for name, value in means.items()}
    return {**numbers, **{name: torch.zeros((), device=device) for name in ("density", "sent", "samples")}}


def restart(tally: Tree) -> Tree:
    """The tally as it is, to be replaced by the next samples that come."""
    return {**tally, "samples": torch.zeros_like(tally["samples"])}


def add(tally: Tree, gates: Tree, active: Tensor, density: Tensor, samples: Tensor) -> Tree:
    """The tally after one more batch: every sample counts alike.

    >>> before = start(1, 0.5, 0.5, torch.device("cpu"))
    >>> gates, on = {"scale": torch.tensor([0.2]), "score": torch.tensor([0.9])}, torch.tensor([True])
    >>> once = add(before, gates, on, torch.tensor(1.0), torch.tensor(2.0))
    >>> add(once, {**gates, "scale": torch.tensor([0.8])}, on, torch.tensor(1.0), torch.tensor(4.0))["scale"]
    tensor([0.6000])
    """
    newest = {**gates, "kept": active, "density": density}
    total = tally["samples"] + samples
    weight = samples / total.clamp_min(1.0)
    means = tree.map(lambda new, old: torch.lerp(old, new.to(old.dtype), weight), newest, tally)
    return {**tally, **means, "samples": total}


def share(masks: Tree) -> Tensor:
    """The share of the coordinates that take part."""
    return torch.stack([mask.sum() for mask in masks.values()]).sum() / tree.size(masks)


def only_active(before: Slots, after: Slots, masks: Tree) -> Slots:
    """The model and its optimiser's state after a step, but as before where a coordinate was inactive: neither momentum
    nor weight decay moves it."""

    def keep_inactive(name: str, new: Tensor, old: Tensor) -> Tensor:
        per_coordinate = name in masks and new.shape == masks[name].shape
        return torch.where(masks[name], new, old) if per_coordinate else new

    slots = [slot for slot in after if slot == "params" or slot.startswith("params:")]
    return {slot: {n: keep_inactive(n, leaf, before[slot][n]) for n, leaf in after[slot].items()} for slot in slots}
