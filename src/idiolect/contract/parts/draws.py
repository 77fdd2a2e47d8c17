"""Models that are drawn anew, for methods whose models must not start alike."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.tree import Tree


def draw_like(params: Tree, random: np.random.Generator, spread: float = 1.0) -> Tree:
    """Normal draws with the mean and the scale of each tensor; one whose values are all alike stays. With a `spread`
    below 1 they stay near the given values, with the same scale.

    >>> drawn = draw_like({"scale": torch.ones(2), "w": torch.arange(9.0)}, np.random.default_rng(0))
    >>> drawn["scale"].tolist(), drawn["w"].equal(torch.arange(9.0))
    ([1.0, 1.0], False)
    """
    keep = math.sqrt(1 - spread**2)

    def fresh(leaf: Tensor) -> Tensor:
        noise = torch.from_numpy(random.standard_normal(tuple(leaf.shape), np.float32)).to(leaf)
        centre = leaf.mean()
        return centre + keep * (leaf - centre) + spread * leaf.std(correction=0) * noise

    return tree.map(fresh, params)
