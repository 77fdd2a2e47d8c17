"""The handwritten digits that come with scikit-learn: real data that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

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
