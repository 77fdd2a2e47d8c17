"""From a name and data to an initialised network."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from ..errors import ModelError
from .networks import Network, models


class Described(Protocol):
    """What a network must know about data; federations and pools tell it."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def outputs(self) -> int: ...

    @property
    def tokens(self) -> bool: ...


def build(model: str | Network, data: Described, seed: int = 0) -> nn.Module:
    """A network that fits the data, with initial values that the seed determines.

    PyTorch's own random numbers are left as they were.

    >>> from idiolect.data import load
    >>> build("mlp(hidden=[32])", load("digits", clients=5))
    Sequential(
      (flatten): Flatten(start_dim=1, end_dim=-1)
      (fc1): Linear(in_features=64, out_features=32, bias=True)
      (relu_fc1): ReLU()
      (fc2): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    network = models.build(model)
    if data.tokens and not network.takes_tokens:
        raise ModelError(f"{network.name} takes numbers, but the inputs are tokens; use a network that embeds them")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return network.build(data.input_shape, data.outputs)


def default_model(data: Described) -> str:
    """The name of a network that suits the data: cnn4 for images it can take, else mlp.

    >>> from idiolect.data import load
    >>> default_model(load("digits", clients=5))
    'mlp'
    """
    shape = data.input_shape
    return "cnn4" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
