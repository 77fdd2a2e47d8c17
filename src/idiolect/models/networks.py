"""What a network is here, and the plain ones: dense layers. A builder holds a network's options; the data say
the shape of its inputs and the number of its outputs. The other families have files of their own."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

from torch import nn

from ..core.adopted import Adopted
from ..core.errors import ModelError
from ..core.options import Options, option
from ..core.registry import Registry


class Described(Protocol):
    """What a network must know about data; federations and pools tell it."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def target_shape(self) -> tuple[int, ...]: ...

    @property
    def outputs(self) -> int: ...

    @property
    def tokens(self) -> bool: ...

    @property
    def vocabulary(self) -> int: ...


@dataclass(frozen=True)
class Network(Options):
    """A network that can be built for inputs of one shape and a number of outputs."""

    name: ClassVar[str] = "network"
    title: ClassVar[str] = ""
    papers: ClassVar[str] = ""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    takes_tokens: ClassVar[bool | None] = False
    """Whether its inputs are tokens; None where it says so itself."""

    def for_data(self, data: Described) -> Network:
        """The same network with what only the data know, such as the number of different tokens."""
        return self

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network, initialised by PyTorch's own rules."""
        raise NotImplementedError

    def build_for(self, data: Described) -> nn.Module:
        """The network that fits some data."""
        return self.build(data.input_shape, data.outputs)


@dataclass(frozen=True)
class OwnNetwork(Adopted, Network):
    """A user's class of networks, or a function that builds one: of its parameters those that are named like a fact of
    the data are given to it, the others are options."""

    given = ("input_shape", "target_shape", "outputs", "vocabulary")
    error = ModelError
    takes_tokens = None

    def build_for(self, data: Described) -> nn.Module:
        """What the function returns, or an object of the class."""
        module = self.call(**{name: getattr(data, name) for name in self.given})
        if not isinstance(module, nn.Module):
            raise ModelError(f"{self.name} gives a {type(module).__name__}; it must give a network, an nn.Module")
        return module


class Networks(Registry[Network]):
    """Networks by name. One that is built already is refused, since each seed has initial weights of its own."""

    def take(self, thing: Any, name: str) -> type[Network]:
        """A user's class or function as a class of networks."""
        if isinstance(thing, nn.Module):
            raise ModelError(
                f"{name} is a network that is built already; name its class, or a function that builds it, so that each"
                " seed has its own initial weights"
            )
        return super().take(thing, name)


models = Networks("model", Network, group="idiolect.models", adopted=OwnNetwork)


def dense_layers(widths: list[int], bias: bool = True) -> list[tuple[str, nn.Module]]:
    """Linear layers of these widths, with ReLU between them."""
    layers: list[tuple[str, nn.Module]] = []
    for at, (before, after) in enumerate(pairwise(widths), start=1):
        layers += [(f"fc{at}", nn.Linear(before, after, bias=bias)), (f"relu_fc{at}", nn.ReLU())]
    return layers[:-1]


def check_image(name: str, input_shape: tuple[int, ...], least: int, why: str) -> tuple[int, int, int]:
    """Channels, height and width of a sample, or a `ModelError` where it is no image or a side is below `least`."""
    if len(input_shape) != 3:
        raise ModelError(
            f"{name} needs images [channels, height, width], but a sample has the shape {list(input_shape)}; use mlp"
        )
    channels, height, width = input_shape
    if min(height, width) < least:
        raise ModelError(
            f"{name} needs images of at least {least} x {least} pixels, for {why}, but these have {height} x {width};"
            " use mlp or linear"
        )
    return channels, height, width


@models.register("mlp")
@dataclass(frozen=True)
class Mlp(Network):
    """Dense layers with ReLU on the flattened sample.

    >>> Mlp(hidden=(200,)).build((1, 28, 28), 10)[1]
    Linear(in_features=784, out_features=200, bias=True)
    """

    title: ClassVar[str] = "dense layers with ReLU"

    hidden: tuple[int, ...] = option((200,), min=1, help="widths of the hidden layers")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = dense_layers([math.prod(input_shape), *self.hidden, classes])
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *layers]))


@models.register("linear", "logistic")
@dataclass(frozen=True)
class LinearModel(Network):
    """One dense layer: logistic regression for classes, linear regression for numbers.

    >>> sum(p.numel() for p in LinearModel().build((2,), 2).parameters())
    6
    """

    title: ClassVar[str] = "one dense layer (logistic regression)"
    papers: ClassVar[str] = "FedLAG, figure 2"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *dense_layers([math.prod(input_shape), classes])]))


@models.register("simulation")
@dataclass(frozen=True)
class Simulation(Network):
    """The network of FedFac's simulation: one hidden layer, no biases, as in its equation 8.

    >>> Simulation().build((100,), 2).fc1.weight.shape
    torch.Size([200, 100])
    """

    title: ClassVar[str] = "one hidden layer of 200 ReLU units without biases"
    papers: ClassVar[str] = "FedFac, section 4.3"

    hidden: int = option(200, min=1, help="number of hidden units")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = dense_layers([math.prod(input_shape), self.hidden, classes], bias=False)
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *layers]))
