"""VGG-16: thirteen 3 x 3 convolutions and dense layers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.options import option
from .networks import Network, check_image, dense_layers, models
from .resnet import norm as normalisation

_GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@models.register("vgg16", "vgg")
@dataclass(frozen=True)
class Vgg16(Network):
    """VGG-16 (Simonyan and Zisserman, 2015) for images from 32 pixels on. `preset=imagenet` is the published network:
    no normalisation, averaging to 7 x 7, dense layers of 4096 units with dropout.

    >>> sum(p.numel() for p in Vgg16(dense=()).build((3, 32, 32), 10).parameters())
    14728266
    """

    title: ClassVar[str] = "thirteen 3 x 3 convolutions (64 to 512), dense layers 512, 512 and output"
    papers: ClassVar[str] = "FedFac"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "imagenet": {"norm": "none", "pool": 7, "dense": (4096, 4096), "dropout": 0.5}
    }

    norm: str = option("batch", choices=("batch", "group", "none"), help="normalisation after each convolution")
    dense: tuple[int, ...] = option((512, 512), min=1, help="widths of the dense layers before the output")
    pool: int = option(1, min=1, help="side to which the last convolution's output is averaged")
    dropout: float = option(0.0, min=0.0, below=1.0, help="share of hidden dense units dropped in training")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        before, _, _ = check_image(self.name, input_shape, 32, "five poolings by two")
        layers: list[tuple[str, nn.Module]] = []
        for group, widths in enumerate(_GROUPS, start=1):
            for at, width in enumerate(widths, start=1):
                layers.append((f"conv{group}_{at}", nn.Conv2d(before, width, 3, padding=1)))
                if self.norm != "none":
                    layers.append((f"norm{group}_{at}", normalisation(self.norm, width)))
                layers.append((f"relu{group}_{at}", nn.ReLU()))
                before = width
            layers.append((f"pool{group}", nn.MaxPool2d(2)))
        layers += [("average", nn.AdaptiveAvgPool2d(self.pool)), ("flatten", nn.Flatten())]
        for name, layer in dense_layers([512 * self.pool**2, *self.dense, classes]):
            layers.append((name, layer))
            if self.dropout and isinstance(layer, nn.ReLU):
                layers.append((name.replace("relu", "drop"), nn.Dropout(self.dropout)))
        return nn.Sequential(OrderedDict(layers))
