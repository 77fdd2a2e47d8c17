"""The papers' networks, as plain sequences of layers. A builder holds a network's options; the data say
the shape of its inputs and the number of its outputs."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import nn

from ..errors import ModelError, OptionError
from ..options import Options, option
from ..registry import Registry


@dataclass(frozen=True)
class Network(Options):
    """A network that can be built for inputs of one shape and a number of outputs."""

    name: ClassVar[str] = "network"
    title: ClassVar[str] = ""
    papers: ClassVar[str] = ""
    takes_tokens: ClassVar[bool] = False

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network, initialised by PyTorch's own rules."""
        raise NotImplementedError


models: Registry[Network] = Registry("model", Network)


def _dense(widths: list[int], bias: bool = True) -> list[tuple[str, nn.Module]]:
    """Linear layers of these widths, with ReLU between them."""
    layers: list[tuple[str, nn.Module]] = []
    for at, (before, after) in enumerate(pairwise(widths), start=1):
        layers += [(f"fc{at}", nn.Linear(before, after, bias=bias)), (f"relu_fc{at}", nn.ReLU())]
    return layers[:-1]


def _convolutional(name: str, input_shape: tuple[int, ...], dense: list[int]) -> nn.Sequential:
    """Two 5 x 5 convolutions with 32 and 64 channels, each with ReLU and pooling, then dense layers."""
    if len(input_shape) != 3:
        raise ModelError(
            f"{name} needs images [channels, height, width], but a sample has the shape {list(input_shape)}; use mlp"
        )
    channels, height, width = input_shape
    if min(height, width) < 16:
        raise ModelError(
            f"{name} needs images of at least 16 x 16 pixels, for two convolutions of 5 x 5 with pooling, but"
            f" these have {height} x {width}; use mlp or linear"
        )
    down = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    layers: list[tuple[str, nn.Module]] = []
    for at, (before, after) in enumerate(((channels, 32), (32, 64)), start=1):
        layers += [(f"conv{at}", nn.Conv2d(before, after, 5)), (f"relu{at}", nn.ReLU()), (f"pool{at}", nn.MaxPool2d(2))]
    layers += [("flatten", nn.Flatten()), *_dense([64 * down[0] * down[1], *dense])]
    return nn.Sequential(OrderedDict(layers))


@models.register("mlp")
@dataclass(frozen=True)
class Mlp(Network):
    """Dense layers with ReLU on the flattened sample.

    >>> Mlp(hidden=(200,)).build((1, 28, 28), 10)[1]
    Linear(in_features=784, out_features=200, bias=True)
    """

    title: ClassVar[str] = "dense layers with ReLU"

    hidden: tuple[int, ...] = option((200,), min=1, help="widths of the hidden layers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(each, bool) or not isinstance(each, int) for each in self.hidden):
            raise OptionError(f"mlp: hidden={list(self.hidden)} is not allowed; the widths must be whole numbers")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = _dense([math.prod(input_shape), *self.hidden, classes])
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
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *_dense([math.prod(input_shape), classes])]))


@models.register("cnn4", "fedavgcnn")
@dataclass(frozen=True)
class Cnn4(Network):
    """Two convolutions and two dense layers: the network of FLAYER and of PFLlib's tables.

    >>> sum(p.numel() for p in Cnn4().build((1, 28, 28), 10).parameters())
    582026
    """

    title: ClassVar[str] = "two 5 x 5 convolutions (32, 64), dense layers 512 and output"
    papers: ClassVar[str] = "FLAYER, FedALA"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _convolutional(self.name, input_shape, [512, classes])


@models.register("lenet5w", "lenet5")
@dataclass(frozen=True)
class LeNet5w(Network):
    """LeNet-5 with 32 and 64 channels, as in pFedGate's CIFAR-10 experiments.

    >>> sum(p.numel() for p in LeNet5w().build((3, 32, 32), 10).parameters())
    256830
    """

    title: ClassVar[str] = "two 5 x 5 convolutions (32, 64), dense layers 120, 84 and output"
    papers: ClassVar[str] = "pFedGate"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _convolutional(self.name, input_shape, [120, 84, classes])


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
        layers = _dense([math.prod(input_shape), self.hidden, classes], bias=False)
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *layers]))
