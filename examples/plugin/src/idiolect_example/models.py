"""A network: parameters that are named like a fact of the data are filled in, the others are options."""

from __future__ import annotations

import math

from torch import Tensor, nn


class TwoLayers(nn.Module):
    """Two dense layers with a hyperbolic tangent between them."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(input_shape), hidden)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.hidden(x.flatten(1)).tanh())
        return out
