"""Columns whose cells hold several values: lists of numbers, and text as words. Those of one length are a vector, the
others sequences; the words that training samples have are the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.errors import DataError
from ..core.layout import InputLayout, Padded
from .words import tokenise

if TYPE_CHECKING:
    import polars as pl

UNKNOWN = 1
"""The token of words that no training sample has; 0 fills up."""
FIRST = 2
FILLERS = ("", "(unknown)")


def is_list(column: pl.Series) -> bool:
    """Whether the cells of a column are lists."""
    import polars as pl

    return column.dtype.base_type() in (pl.List, pl.Array)


def read_lists(column: pl.Series, owner: str) -> np.ndarray | list[Tensor]:
    """A column of lists of numbers: as an array where all have one length, else as sequences."""
    import polars as pl

    inner = getattr(column.dtype, "inner", None)
    if inner is None or not (inner.is_numeric() or inner == pl.Boolean):
        raise DataError(
            f"{owner}: the column {column.name!r} holds {column.dtype}, not numbers or lists of numbers; leave it out:"
            f" leave_out=[{column.name}]"
        )
    rows = column.to_list()
    gaps = sum(row is None or not row or any(value is None for value in row) for row in rows)
    if gaps:
        raise DataError(
            f"{owner}: the column {column.name!r} has {gaps} lists that are empty or have gaps; drop those rows or fill"
            " them"
        )
    if len({len(row) for row in rows}) == 1:
        return np.array(rows, float)
    kind = torch.int64 if inner.is_integer() else torch.float32
    return [torch.tensor(row, dtype=kind) for row in rows]


def read_words(columns: Sequence[pl.Series], owner: str) -> tuple[list[list[Tensor]], tuple[str, ...]]:
    """Columns of text as sequences of tokens, and all words, the first of which is token 2."""
    texts = []
    for column in columns:
        words = [tokenise(text or "") for text in column.to_list()]
        if empty := sum(not row for row in words):
            raise DataError(f"{owner}: the column {column.name!r} has {empty} texts without words; drop those rows")
        texts.append(words)
    known = tuple(sorted({word for words in texts for row in words for word in row}))
    number = {word: place for place, word in enumerate(known, FIRST)}
    return [[torch.tensor([number[word] for word in row]) for row in words] for words in texts], known


def pad(rows: Sequence[Tensor]) -> Padded:
    """Sequences filled up to one length."""
    return Padded(pad_sequence(list(rows), batch_first=True), torch.tensor([len(row) for row in rows]))


def trained_words(x: Tensor, layout: InputLayout, lexicon: Sequence[str], trained: Tensor) -> tuple[str, ...]:
    """The words that some rows have, after what fills up and what is unknown."""
    used = {token for part in layout.tokens(x.index_select(0, trained)) for token in torch.unique(part).tolist()}
    return FILLERS + tuple(word for token, word in enumerate(lexicon, FIRST) if token in used)


def renumber(x: Tensor, layout: InputLayout, lexicon: Sequence[str], words: Sequence[str]) -> Tensor:
    """Rows with the tokens that words have among these `words`; those of others are unknown."""
    known = {word: token for token, word in enumerate(words) if token >= FIRST}
    number = torch.tensor([0, UNKNOWN, *(known.get(word, UNKNOWN) for word in lexicon)])
    return layout.change_tokens(x, lambda tokens: number[tokens])
