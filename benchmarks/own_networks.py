"""Eight networks as people write them: classes with functional calls, and the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 5000


class Mlp(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))  # type: ignore[no-any-return]


class NormedMlp(nn.Module):
    """Layer normalisations and GELUs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 200), nn.Linear(200, 200), nn.Linear(200, 10)
        self.norm1, self.norm2 = nn.LayerNorm(200), nn.LayerNorm(200)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.gelu(self.norm1(self.fc1(torch.flatten(x, 1))))
        x = x + F.gelu(self.norm2(self.fc2(x)))
        return self.fc3(x)  # type: ignore[no-any-return]


class LeNet(nn.Module):
    """LeNet-5 in its wide form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc2 = nn.Linear(1600, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 1600)
        return self.fc2(F.relu(self.fc1(x)))  # type: ignore[no-any-return]


class ConvBlock(nn.Module):
    """Convolution, batch normalisation, ReLU, pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Half the size."""
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)


class ConvNet(nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ConvBlock(3, 32), ConvBlock(32, 64), ConvBlock(64, 64))
        self.head = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.blocks(x).flatten(1))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two convolutions with group normalisation and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The block's outputs."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Three residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1), nn.GroupNorm(4, 16)
        self.blocks = nn.ModuleList([ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)])
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Gru(nn.Module):
    """Embedding and GRU, the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(100, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.gru(self.embed(x))[0][:, -1])  # type: ignore[no-any-return]


class BagOfWords(nn.Module):
    """The mean of embeddings, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc1, self.fc2 = nn.Embedding(VOCABULARY, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc2(F.relu(self.fc1(self.embed(x).mean(1))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Two encoder layers, and the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.embed, self.head = nn.Embedding(100, 64), nn.Linear(64, 10)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.layers(self.embed(x)).mean(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Own:
    """A network, the shape of its inputs, how many tokens there are (0 for numbers), and the ratio that is aimed at."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int
    aim: float


NETWORKS = {
    "MLP 784-200-10": Own(Mlp, (1, 28, 28), 0, 0.6),
    "MLP, LayerNorm and GELU": Own(NormedMlp, (1, 28, 28), 0, 0.7),
    "LeNet-5w": Own(LeNet, (3, 32, 32), 0, 0.48),
    "three conv-BN-ReLU-pool": Own(ConvNet, (3, 32, 32), 0, 0.55),
    "ResNet, GroupNorm": Own(ResNet, (3, 32, 32), 0, 0.65),
    "GRU, 64 steps": Own(Gru, (64,), 100, 0.9),
    "mean of embeddings": Own(BagOfWords, (64,), VOCABULARY, 0.5),
    "two transformer layers": Own(Transformer, (32,), 100, 0.9),
}
