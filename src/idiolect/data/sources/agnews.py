"""Text as tokens: a plain tokeniser, a vocabulary that depends on the texts and on nothing else, and AG News."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import Layout, read_text
from ..formats.packed import check_labels
from ..naming import Naming
from ..words import tokenise
from .base import FileSource, Pool, sources

PADDING, UNKNOWN = 0, 1


def make_vocabulary(texts: Iterable[Sequence[str]], limit: int | None = None) -> dict[str, int]:
    """Words by number: the most frequent first, ties by alphabet; 0 is padding and 1 unknown.

    >>> make_vocabulary([["b", "a", "b"], ["c"]], limit=4)
    {'b': 2, 'a': 3}
    """
    counts = Counter(word for words in texts for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: at for at, word in enumerate(ranked[: None if limit is None else max(0, limit - 2)], start=2)}


def encode(texts: Sequence[Sequence[str]], vocabulary: dict[str, int], length: int) -> torch.Tensor:
    """Tokens [texts, length]: cut at the end, or padded there.

    >>> encode([["b", "x"], ["b", "b", "b", "b"]], {"b": 2}, length=3)
    tensor([[2, 1, 0],
            [2, 2, 2]])
    """
    tokens = np.full((len(texts), length), PADDING, np.int64)
    for row, words in zip(tokens, texts, strict=True):
        cut = [vocabulary.get(word, UNKNOWN) for word in words[:length]]
        row[: len(cut)] = cut
    return torch.from_numpy(tokens)


@sources.register("ag-news", "agnews")
@dataclass(frozen=True)
class AgNews(FileSource):
    """News in four classes: world, sports, business, science and technology. Training and test parts are merged; title
    and description are joined, split into words, and cut or padded to `length`. The vocabulary is made of the texts
    that are taken. The compact file holds a part of the training texts, and results on it the name ag-news-subset."""

    title: ClassVar[str] = "AG News"
    licence: ClassVar[str] = "non-commercial research (publisher's readme)"
    size: ClassVar[str] = (
        "127,600 samples (38,292 in the compact file), tokens, 4 classes; training and test part merged"
    )
    papers: ClassVar[str] = "FLAYER"
    layouts: ClassVar[dict[str, Layout]] = {
        "csv": Layout("ag_news", ("train.csv", "test.csv")),
        "subset": Layout("ag_news", ("train_subset.csv", "test.csv")),
    }
    checksums: ClassVar[dict[str, str]] = {
        "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
        "test.csv": "d52ea96a97a2d943681189a97654912d",
    }

    length: int = option(200, min=1, help="words per text; longer ones are cut, shorter ones padded")
    vocabulary: int | None = option(None, min=3, help="keep only so many words, the most frequent; none keeps all")
    kind: str = option("all", choices=("all", "title+desc", "desc"), help="compact file: which training texts")
    verify: bool = option(True, help="compare plain files with the publisher's checksums")

    def load(self) -> Pool:
        """The pool of tokens."""
        kind, paths = self.find(self.verify)
        labels: list[int] = []
        texts: list[str] = []
        for file, path in paths.items():
            for label, text in self._rows(path, header=file == "train_subset.csv"):
                labels.append(label)
                texts.append(text)
        y = check_labels(self.name, np.array(labels), 4, start=1)
        index = self.choose_samples(len(y))
        words = [tokenise(texts[at]) for at in index]
        known = make_vocabulary(words, self.vocabulary)
        name = "ag-news-subset" if kind == "subset" else self.name
        x = encode(words, known, self.length)
        names = Naming(words=("<padding>", "<unknown>", *known))
        return Pool(x, torch.from_numpy(y[index]), None, 4, name, words=len(known) + 2, names=names)

    def _rows(self, path: Path, header: bool) -> Iterable[tuple[int, str]]:
        rows = csv.reader(io.StringIO(read_text(path), newline=""))
        if header and next(rows, [])[:3] != ["label", "text", "kind"]:
            raise DataError(f"{path} must begin with a line label,text,kind; it is another file than its name says")
        for number, row in enumerate(rows, start=1 + header):
            if len(row) < 2 + header or not row[0].strip().isdigit():
                raise DataError(f"{path}, row {number}: must begin with a class and hold a text; fetch it again")
            if not header:
                yield int(row[0]), " ".join(row[1:3])
            elif self.kind in ("all", row[2]):
                yield int(row[0]), row[1]
