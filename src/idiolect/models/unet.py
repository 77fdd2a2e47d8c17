"""U-Net for segmentation: one output per pixel and class."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.options import option
from .networks import Network, check_image, models
from .resnet import NORMS, norm

_DEPTH = 4


def _pair(before: int, after: int, normalisation: str) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with normalisation and ReLU."""
    layers: list[tuple[str, nn.Module]] = []
    for at, width in enumerate((before, after), start=1):
        layers += [
            (f"conv{at}", nn.Conv2d(width, after, 3, padding=1, bias=False)),
            (f"norm{at}", norm(normalisation, after)),
            (f"relu{at}", nn.ReLU()),
        ]
    return nn.Sequential(OrderedDict(layers))


class UNetModule(nn.Module):
    """Four levels down by pooling, four up by transposed convolutions, each joined with what left its level.

    >>> UNetModule(3, 2, width=4, normalisation="batch")(torch.zeros(1, 3, 32, 48)).shape
    torch.Size([1, 2, 32, 48])
    """

    def __init__(self, channels: int, classes: int, width: int, normalisation: str) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(_DEPTH + 1)]
        self.down = nn.ModuleList(
            _pair(before, after, normalisation)
            for before, after in zip([channels, *widths[: _DEPTH - 1]], widths[:_DEPTH], strict=True)
        )
        self.bottom = _pair(widths[-2], widths[-1], normalisation)
        narrower = widths[:-1][::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in narrower)
        self.up = nn.ModuleList(_pair(2 * width, width, normalisation) for width in narrower)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [samples, classes, height, width]."""
        left: list[Tensor] = []
        for level in self.down:
            x = level(x)
            left.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for rise, level, beside in zip(self.rise, self.up, reversed(left), strict=True):
            x = level(torch.cat([rise(x), beside], 1))
        logits: Tensor = self.out(x)
        return logits


@models.register("unet")
@dataclass(frozen=True)
class UNet(Network):
    """U-Net (Ronneberger et al., 2015) with padding and normalisation, 32 channels at the top and 512 at the bottom.

    >>> sum(p.numel() for p in UNet().build((3, 256, 256), 1).parameters())
    7763041
    """

    title: ClassVar[str] = (
        "U-Net with four levels of 32, 64, 128, 256 channels and 512 at the bottom; one output per pixel"
    )
    papers: ClassVar[str] = "LG-Mix (retinal segmentation)"

    width: int = option(32, min=1, help="channels of the first level; each further level has twice as many")
    norm: str = option("batch", choices=NORMS, help="batch norm, or group norm with 32 groups")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = check_image(self.name, input_shape, 2**_DEPTH, "four halvings")
        if height % 2**_DEPTH or width % 2**_DEPTH:
            raise ModelError(
                f"{self.name} halves an image four times, so its sides must be multiples of {2**_DEPTH}, but these have"
                f" {height} x {width}; resize or pad them"
            )
        if self.norm == "group" and self.width % 32:
            raise ModelError(f"{self.name}: norm=group has 32 groups, so width={self.width} must be a multiple of 32")
        return UNetModule(channels, classes, self.width, self.norm)
