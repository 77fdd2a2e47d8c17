"""From a name and data to an initialised network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..core.adopted import Adopted
from ..core.errors import ModelError
from ..core.options import make
from .networks import Described, Network, models


def build(model: str | Network | Callable[..., nn.Module], data: Described, seed: int = 0) -> nn.Module:
    """A network that fits the data, with initial values that the seed determines: by name, or of a class of networks or
    a function that builds one.

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
    if isinstance(model, str | Network):
        network = models.build(model)
    else:
        network = make(models.take(model, getattr(model, "__name__", "model")), {})
    if not is_one_input(data) and not isinstance(network, Adopted):
        raise ModelError(
            f"{network.name} takes one input, but the data have several; write a network whose forward has a"
            " parameter for"
            " each, and give it as model=... or file.py:Net"
        )
    if network.takes_tokens is not None and data.tokens != network.takes_tokens:
        fitting = ", ".join(name for name in models if models.get(name).takes_tokens == data.tokens)
        has, takes = ("tokens", "numbers") if data.tokens else ("numbers", "tokens")
        raise ModelError(f"{network.name} takes {takes}, but the inputs are {has}; use one of {fitting}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return network.for_data(data).build_for(data)


def is_one_input(data: Described) -> bool:
    """Whether a sample is one array, and not several in a dict or tuple."""
    shape: Any = data.input_shape
    return isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)


def default_model(data: Described) -> str:
    """The name of a network that suits the data: lstm where the next token is to be predicted, else fasttext for
    tokens; unet for a target per pixel; cnn4 for images it can take; else mlp.

    >>> from idiolect.data import load
    >>> default_model(load("digits", clients=5))
    'mlp'
    """
    shape = data.input_shape
    if not is_one_input(data):
        return "mlp"  # which takes one input, and says so
    if data.tokens:
        return "lstm" if data.target_shape or data.outputs == data.vocabulary else "fasttext"
    if len(shape) == 3 and data.target_shape == shape[1:]:
        return "unet"
    return "cnn4" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
