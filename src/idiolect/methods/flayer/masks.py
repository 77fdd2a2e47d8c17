"""FLAYER's masks: of each layer, the coordinates that moved most (eq. 5 to 8)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ... import analysis
from ...contract import Tree, tree
from ...task.task import Task
from .rates import layer_numbers


def layer_masks(change: Tree, task: Task, low: float, high: float) -> Tree:
    """The paper's: moves are ranked within a layer, weight and bias together; the last layer is sent whole."""
    numbers = layer_numbers(task)
    shares = (*analysis.upload_fractions(max(numbers.values()), low, high)[:-1], 1.0)
    masks: Tree = {}
    for unit in task.units:
        if names := [name for name in unit.params if name in change]:
            mask = analysis.top_fraction_mask(tree.flatten(change, names), shares[numbers[unit.name] - 1])
            pieces = torch.split(mask, [change[name].numel() for name in names])
            masks |= {n: piece.reshape(change[n].shape) for n, piece in zip(names, pieces, strict=True)}
    return masks


def kernel_masks(change: Tree, names: Sequence[str], low: float, high: float) -> Tree:
    """The authors' program: tensor q = 0 ... Q - 1 sends the share q / Q, cut to [low, high], the last two all. In a
    convolution the moves are ranked inside of every kernel, in a vector all together; dense weights are sent whole. A
    kernel of one element, which that program never sends, is sent."""
    shares = [min(max(q / len(names), low), high) for q in range(len(names))]
    shares[-2:] = [1.0] * len(shares[-2:])
    masks: Tree = {}
    for name, share in zip(names, shares, strict=True):
        if (moved := change.get(name)) is None:
            continue
        if moved.ndim == 1 and share < 1:
            masks[name] = analysis.top_fraction_mask(moved, share)
        elif moved.ndim > 2 and share < 1:
            masks[name] = analysis.kernel_mask(moved, share)
        else:
            masks[name] = torch.ones_like(moved, dtype=torch.bool)
    return masks
