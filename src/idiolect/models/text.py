"""Networks for tokens: an LSTM for characters, fastText for words. Token 0 is padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.options import option
from .networks import Described, Network, dense_layers, models


def _vocabulary_size(name: str, vocabulary: int | None, input_shape: tuple[int, ...]) -> int:
    if vocabulary is None:
        raise ModelError(f"{name}: give vocabulary, the number of different tokens, or build it for data")
    if len(input_shape) != 1:
        raise ModelError(f"{name} needs sequences of tokens, but a sample has the shape {list(input_shape)}")
    return vocabulary


class LstmModule(nn.Module):
    """Embedding, LSTM, dense layers; on the last position, or on every one.

    >>> import torch
    >>> LstmModule(80, 8, 16, 2, [], 80, every=False)(torch.zeros(3, 20, dtype=torch.long)).shape
    torch.Size([3, 80])
    """

    def __init__(
        self, vocabulary: int, embedding: int, width: int, layers: int, dense: list[int], classes: int, every: bool
    ) -> None:
        super().__init__()
        self.every = every
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, width, num_layers=layers, batch_first=True)
        self.head = nn.Sequential()
        for name, layer in dense_layers([width, *dense, classes]):
            self.head.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [samples, classes], or [samples, classes, positions]: classes second, so that they differ from
        positions even where there are as many of both."""
        states, _ = self.lstm(self.embed(x))
        logits: Tensor = self.head(states if self.every else states[:, -1])
        return logits.movedim(-1, 1)


@models.register("lstm", "charlstm")
@dataclass(frozen=True)
class Lstm(Network):
    """LEAF's network for Shakespeare: an embedding of 8 numbers, two LSTM layers of 256 units, an output layer.

    Where the data have one target per sample, it predicts from the last position; where they have one per position,
    from every position. `preset=fedfac` has two dense layers, as that paper says (their width is our choice).

    >>> sum(p.numel() for p in Lstm(vocabulary=90).build((80,), 90).parameters())
    822570
    """

    title: ClassVar[str] = "embedding of 8, two LSTM layers of 256 units, output"
    papers: ClassVar[str] = "FedFac (Shakespeare)"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fedfac": {"dense": (256,)}}
    takes_tokens: ClassVar[bool] = True

    embedding: int = option(8, min=1, help="numbers per token")
    width: int = option(256, min=1, help="units of an LSTM layer")
    layers: int = option(2, min=1, help="LSTM layers")
    dense: tuple[int, ...] = option((), min=1, help="widths of dense layers before the output")
    vocabulary: int | None = option(None, min=1, help="number of different tokens; none is that of the data")
    every: bool = option(False, help="predict at every position; the data decide where they have such targets")

    def for_data(self, data: Described) -> Network:
        known = data.vocabulary if self.vocabulary is None else self.vocabulary
        return replace(self, vocabulary=known, every=self.every or len(data.target_shape) == 1)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        known = _vocabulary_size(self.name, self.vocabulary, input_shape)
        return LstmModule(known, self.embedding, self.width, self.layers, list(self.dense), classes, self.every)


class FastTextModule(nn.Module):
    """The mean of the tokens' embeddings, padding included, and two linear maps.

    >>> import torch
    >>> FastTextModule(50, 32, 4)(torch.zeros(3, 20, dtype=torch.long)).shape
    torch.Size([3, 4])
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [samples, classes]."""
        logits: Tensor = self.fc2(self.fc1(self.embed(x).mean(1)))
        return logits


@models.register("fasttext")
@dataclass(frozen=True)
class FastText(Network):
    """FLAYER's and PFLlib's fastText: mean of embeddings, two linear maps, nothing non-linear between them.

    >>> sum(p.numel() for p in FastText(vocabulary=98635).build((200,), 4).parameters())
    3157508
    """

    title: ClassVar[str] = "mean of embeddings of 32 numbers, dense layers 32 and output"
    papers: ClassVar[str] = "FLAYER (AG News)"
    takes_tokens: ClassVar[bool] = True

    width: int = option(32, min=1, help="numbers per token, and units of the hidden layer")
    vocabulary: int | None = option(None, min=1, help="number of different tokens; none is that of the data")

    def for_data(self, data: Described) -> Network:
        return self if self.vocabulary is not None else replace(self, vocabulary=data.vocabulary)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return FastTextModule(_vocabulary_size(self.name, self.vocabulary, input_shape), self.width, classes)
