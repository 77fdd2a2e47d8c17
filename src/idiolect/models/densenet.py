"""DenseNet-121: every layer of a block sees what all layers before it gave."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .networks import check_image, models
from .resnet import Stemmed, norm, stem

_BLOCKS = (6, 12, 24, 16)
_GROWTH, _BOTTLENECK = 32, 128


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution, each after normalisation and ReLU; their output joins their input.

    >>> DenseLayer(64, "batch")(torch.zeros(2, 64, 4, 4)).shape
    torch.Size([2, 96, 4, 4])
    """

    def __init__(self, before: int, normalisation: str) -> None:
        super().__init__()
        self.norm1 = norm(normalisation, before)
        self.conv1 = nn.Conv2d(before, _BOTTLENECK, 1, bias=False)
        self.norm2 = norm(normalisation, _BOTTLENECK)
        self.conv2 = nn.Conv2d(_BOTTLENECK, _GROWTH, 3, padding=1, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The input with the layer's own channels behind it."""
        return torch.cat([x, self.conv2(self.relu(self.norm2(self.conv1(self.relu(self.norm1(x))))))], 1)


@models.register("densenet121", "densenet")
@dataclass(frozen=True)
class DenseNet121(Stemmed):
    """DenseNet-121 (Huang et al., 2017): 64 channels, then blocks of 6, 12, 24 and 16 layers that add 32 channels each;
    between blocks, channels and sides are halved.

    >>> sum(p.numel() for p in DenseNet121().build((3, 96, 96), 2).parameters())
    6955906
    """

    title: ClassVar[str] = "dense blocks of 6, 12, 24, 16 layers with 32 channels each, and an output layer"
    papers: ClassVar[str] = "LG-Mix (Camelyon17)"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        least = 32 if self.stem == "large" else 8
        channels, _, _ = check_image(self.name, input_shape, least, "three halvings after the stem")
        layers, width = stem(self.stem, channels, 64, self.norm), 64
        for block, count in enumerate(_BLOCKS, start=1):
            for at in range(count):
                layers.append((f"dense{block}_{at + 1}", DenseLayer(width, self.norm)))
                width += _GROWTH
            if block < len(_BLOCKS):
                layers += [
                    (f"norm_t{block}", norm(self.norm, width)),
                    (f"relu_t{block}", nn.ReLU()),
                    (f"conv_t{block}", nn.Conv2d(width, width // 2, 1, bias=False)),
                    (f"pool_t{block}", nn.AvgPool2d(2)),
                ]
                width //= 2
        layers += [
            ("norm_last", norm(self.norm, width)),
            ("relu_last", nn.ReLU()),
            ("average", nn.AdaptiveAvgPool2d(1)),
            ("flatten", nn.Flatten()),
            ("fc", nn.Linear(width, classes)),
        ]
        return nn.Sequential(OrderedDict(layers))
