"""Small convolutional networks of the papers, as plain sequences of layers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import nn

from ..core.errors import OptionError
from ..core.options import option
from .networks import Network, check_image, dense_layers, models

Layers = list[tuple[str, nn.Module]]


def _leaf(
    name: str, input_shape: tuple[int, ...], dense: list[int], widths: tuple[int, ...] = (32, 64), norm: str = "none"
) -> nn.Sequential:
    """Two 5 x 5 convolutions with 32 and 64 channels, each with ReLU and pooling, then dense layers."""
    why = "two convolutions of 5 x 5 with pooling"
    channels, height, width = check_image(name, input_shape, 16, why)
    down = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    layers: Layers = []
    for at, (before, after) in enumerate(pairwise((channels, *widths)), start=1):
        layers.append((f"conv{at}", nn.Conv2d(before, after, 5)))
        layers += [(f"bn{at}", nn.BatchNorm2d(after))] if norm == "batch" else []
        layers += [(f"relu{at}", nn.ReLU()), (f"pool{at}", nn.MaxPool2d(2))]
    layers += [("flatten", nn.Flatten()), *dense_layers([widths[-1] * down[0] * down[1], *dense])]
    return nn.Sequential(OrderedDict(layers))


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
        return _leaf(self.name, input_shape, [512, classes])


@models.register("leaf-cnn")
@dataclass(frozen=True)
class LeafCnn(Network):
    """LEAF's network for handwritten characters, as pFedGate uses it; with three channels for its CIFAR-100.

    >>> sum(p.numel() for p in LeafCnn().build((1, 28, 28), 62).parameters())
    2278334
    """

    title: ClassVar[str] = "two 5 x 5 convolutions (32, 64), dense layers 2048 and output"
    papers: ClassVar[str] = "pFedGate"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _leaf(self.name, input_shape, [2048, classes])


@models.register("lenet5w", "lenet5")
@dataclass(frozen=True)
class LeNet5w(Network):
    """LeNet-5 with 32 and 64 channels, as in pFedGate's CIFAR-10 experiments; `dense=[1920, 504]` is the wide
    one of its scripts for CIFAR-100, and `channels=[6, 16]` is narrow as in 1998.

    >>> sum(p.numel() for p in LeNet5w().build((3, 32, 32), 10).parameters())
    256830
    """

    title: ClassVar[str] = "two 5 x 5 convolutions (32, 64), dense layers 120, 84 and output"
    papers: ClassVar[str] = "pFedGate"
    presets: ClassVar[dict[str, dict[str, tuple[int, ...]]]] = {"wide": {"dense": (1920, 504)}}

    dense: tuple[int, ...] = option((120, 84), min=1, help="widths of the dense layers before the output")
    channels: tuple[int, ...] = option((32, 64), min=1, help="channels of the two convolutions")
    norm: str = option("none", choices=("none", "batch"), help="batch norm after the convolutions, or none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.channels) != 2:
            raise OptionError(f"{self.name}: channels={list(self.channels)} must be two numbers, as in [32, 64]")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _leaf(self.name, input_shape, [*self.dense, classes], self.channels, self.norm)


@models.register("cnn6")
@dataclass(frozen=True)
class Cnn6(Network):
    """Three pairs of 3 x 3 convolutions and two dense layers, as in FedLAG's experiments on CIFAR.

    >>> sum(p.numel() for p in Cnn6().build((3, 32, 32), 10).parameters())
    1341226
    """

    title: ClassVar[str] = "six 3 x 3 convolutions (32, 32, 64, 64, 128, 128), dense layers 512 and output"
    papers: ClassVar[str] = "FedLAG"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = check_image(self.name, input_shape, 8, "three poolings by two")
        layers: Layers = []
        for at, (before, after) in enumerate(pairwise((channels, 32, 32, 64, 64, 128, 128)), start=1):
            layers += [(f"conv{at}", nn.Conv2d(before, after, 3, padding=1)), (f"relu{at}", nn.ReLU())]
            if at % 2 == 0:
                layers.append((f"pool{at // 2}", nn.MaxPool2d(2)))
        layers += [("flatten", nn.Flatten()), *dense_layers([128 * (height // 8) * (width // 8), 512, classes])]
        return nn.Sequential(OrderedDict(layers))


@models.register("digitmodel", "digits5cnn")
@dataclass(frozen=True)
class DigitModel(Network):
    """LG-Mix's and FedBN's network for Digits-Five: three convolutions and three dense layers, batch norm after all
    but the last.

    >>> sum(p.numel() for p in DigitModel().build((3, 28, 28), 10).parameters())
    14219210
    """

    title: ClassVar[str] = "three 5 x 5 convolutions (64, 64, 128), dense layers 2048, 512 and output, batch norm"
    papers: ClassVar[str] = "LG-Mix, FedBN"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = check_image(self.name, input_shape, 4, "two poolings by two")
        layers: Layers = []
        for at, (before, after) in enumerate(pairwise((channels, 64, 64, 128)), start=1):
            layers += [
                (f"conv{at}", nn.Conv2d(before, after, 5, padding=2)),
                (f"bn{at}", nn.BatchNorm2d(after)),
                (f"relu{at}", nn.ReLU()),
            ]
            if at < 3:
                layers.append((f"pool{at}", nn.MaxPool2d(2)))
        layers.append(("flatten", nn.Flatten()))
        for at, (before, after) in enumerate(pairwise((128 * (height // 4) * (width // 4), 2048, 512)), start=1):
            layers += [
                (f"fc{at}", nn.Linear(before, after)),
                (f"bn{at + 3}", nn.BatchNorm1d(after)),
                (f"relu{at + 3}", nn.ReLU()),
            ]
        return nn.Sequential(OrderedDict([*layers, ("fc3", nn.Linear(512, classes))]))


@models.register("femnist-cnn")
@dataclass(frozen=True)
class FemnistCnn(Network):
    """FedFac's network for FEMNIST. Its code ends in a soft-max, on which it puts cross-entropy, which takes a
    soft-max of its own; here the outputs are logits.

    >>> sum(p.numel() for p in FemnistCnn().build((1, 28, 28), 62).parameters())
    608702
    """

    title: ClassVar[str] = "two 5 x 5 convolutions (32, 64), dense layers 512 and output, dropout"
    papers: ClassVar[str] = "FedFac"

    dropout: float = option(0.5, min=0.0, below=1.0, help="share of channels and of hidden units dropped in training")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        why = "two convolutions of 5 x 5 with pooling"
        channels, height, width = check_image(self.name, input_shape, 16, why)
        down = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        layers: Layers = [
            ("conv1", nn.Conv2d(channels, 32, 5)),
            ("pool1", nn.MaxPool2d(2)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(32, 64, 5)),
            ("drop1", nn.Dropout2d(self.dropout)),
            ("pool2", nn.MaxPool2d(2)),
            ("relu2", nn.ReLU()),
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(64 * down[0] * down[1], 512)),
            ("relu3", nn.ReLU()),
            ("drop2", nn.Dropout(self.dropout)),
            ("fc2", nn.Linear(512, classes)),
        ]
        return nn.Sequential(OrderedDict(layers))
