"""Residual networks: basic blocks of two 3 x 3 convolutions whose input is added to their output."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..core.errors import OptionError
from ..core.options import option
from .networks import Network, check_image, dense_layers, models

GROUPS = 32
NORMS = ("batch", "group")


def norm(kind: str, channels: int) -> nn.Module:
    """Batch norm, or group norm with 32 groups (Wu and He, 2018)."""
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(GROUPS, channels)


def stem(kind: str, channels: int, width: int, normalisation: str) -> list[tuple[str, nn.Module]]:
    """The layers before the first block: for images of about 32 pixels (small), or of about 224 (large)."""
    if kind == "small":
        first: nn.Module = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    else:
        first = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    layers: list[tuple[str, nn.Module]] = [("conv1", first), ("norm1", norm(normalisation, width)), ("relu", nn.ReLU())]
    return layers if kind == "small" else [*layers, ("pool", nn.MaxPool2d(3, stride=2, padding=1))]


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes.

    >>> import torch
    >>> BasicBlock(32, 64, stride=2)(torch.zeros(2, 32, 8, 8)).shape
    torch.Size([2, 64, 4, 4])
    """

    def __init__(self, before: int, after: int, stride: int = 1, normalisation: str = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm(normalisation, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(normalisation, after)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            pieces = [("conv", nn.Conv2d(before, after, 1, stride, bias=False)), ("norm", norm(normalisation, after))]
            self.shortcut = nn.Sequential(OrderedDict(pieces))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        added: Tensor = self.relu(inner + self.shortcut(x))
        return added


def residual(
    first: list[tuple[str, nn.Module]],
    before: int,
    blocks: Sequence[int],
    widths: Sequence[int],
    dense: Sequence[int],
    normalisation: str,
) -> nn.Sequential:
    """A stem, groups of blocks (each after the first halves the image), average pooling, dense layers."""
    layers = list(first)
    for group, (count, width) in enumerate(zip(blocks, widths, strict=True), start=1):
        for at in range(count):
            stride = 2 if at == 0 and group > 1 else 1
            layers.append((f"block{group}_{at + 1}", BasicBlock(before, width, stride, normalisation)))
            before = width
    layers += [("average", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), *dense_layers([before, *dense])]
    return nn.Sequential(OrderedDict(layers))


def _check_blocks(name: str, blocks: tuple[int, ...], groups: int) -> None:
    if len(blocks) != groups or any(isinstance(count, bool) or not isinstance(count, int) for count in blocks):
        raise OptionError(f"{name}: blocks={list(blocks)} is not allowed; give {groups} whole numbers, one per group")


@models.register("resnet9")
@dataclass(frozen=True)
class ResNet9(Network):
    """FedLAG's network for MNIST and EMNIST (its table 5): a 3 x 3 convolution with 32 channels, groups of 1, 2, 2 and
    1 blocks with 32 to 256 channels, and three dense layers.

    The table gives 6.81 MB; with 10 classes this has 1,695,210 parameters, 6.78 MB.

    >>> sum(p.numel() for p in ResNet9().build((1, 28, 28), 10).parameters())
    1695210
    """

    title: ClassVar[str] = "residual blocks (1, 2, 2, 1) with 32, 64, 128, 256 channels, dense layers 256, 128, output"
    papers: ClassVar[str] = "FedLAG, table 5"

    blocks: tuple[int, ...] = option((1, 2, 2, 1), min=1, help="blocks per group")
    norm: str = option("batch", choices=NORMS, help="batch norm, or group norm with 32 groups")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_blocks(self.name, self.blocks, 4)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = check_image(self.name, input_shape, 8, "three halvings")
        first = stem("small", channels, 32, self.norm)
        return residual(first, 32, self.blocks, (32, 64, 128, 256), (256, 128, classes), self.norm)


@models.register("resnet20")
@dataclass(frozen=True)
class ResNet20(Network):
    """FedLAG's network for CIFAR (its table 5): a 3 x 3 convolution with 64 channels, three groups of blocks with 64,
    128 and 256 channels, and three dense layers. `blocks=[2, 3, 4]` is the one for CIFAR-100.

    The table gives 17.54 MB for both; with 10 classes this has 4,425,162 parameters, 17.70 MB.

    >>> sum(p.numel() for p in ResNet20().build((3, 32, 32), 10).parameters())
    4425162
    """

    title: ClassVar[str] = "residual blocks (3, 3, 3) with 64, 128, 256 channels, dense layers 256, 128, output"
    papers: ClassVar[str] = "FedLAG, table 5"

    blocks: tuple[int, ...] = option((3, 3, 3), min=1, help="blocks per group")
    norm: str = option("batch", choices=NORMS, help="batch norm, or group norm with 32 groups")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_blocks(self.name, self.blocks, 3)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = check_image(self.name, input_shape, 4, "two halvings")
        first = stem("small", channels, 64, self.norm)
        return residual(first, 64, self.blocks, (64, 128, 256), (256, 128, classes), self.norm)


@dataclass(frozen=True)
class Stemmed(Network):
    """A network for images of any size, whose stem can be chosen."""

    norm: str = option("batch", choices=NORMS, help="batch norm, or group norm with 32 groups")
    stem: str = option(
        "large", choices=("large", "small"), help="7 x 7 with stride 2 and pooling, or 3 x 3 for images of 32 pixels"
    )


@models.register("resnet18")
@dataclass(frozen=True)
class ResNet18(Stemmed):
    """ResNet-18 (He et al., 2016). The papers use the stem for 224 pixels on small images too, so it is the default.

    >>> sum(p.numel() for p in ResNet18().build((3, 32, 32), 10).parameters())
    11181642
    """

    title: ClassVar[str] = "residual blocks (2, 2, 2, 2) with 64, 128, 256, 512 channels and an output layer"
    papers: ClassVar[str] = "FLAYER, LG-Mix, FedFac"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = check_image(self.name, input_shape, 8, "three halvings")
        first = stem(self.stem, channels, 64, self.norm)
        return residual(first, 64, (2, 2, 2, 2), (64, 128, 256, 512), (classes,), self.norm)
