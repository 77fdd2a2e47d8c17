"""MNIST from its own IDX files: the whole set, and the training part with the writer of every digit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..options import option
from ..rng import generator
from .idx import read_idx
from .sources import Folder, Pool, Source, sources

_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER, _CLASS = 2, 0


def _read(folder: Folder, files: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Images scaled to [0, 1] and labels, checked against each other."""
    paths = dict(zip(folder.files, folder.require(), strict=True))
    images, labels = read_idx(paths[files[0]], dimensions=3), read_idx(paths[files[1]], dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{files[0]} has {len(images)} images, but {files[1]} {len(labels)} labels; fetch both again")
    if len(labels) and labels.max() > 9:
        raise DataError(f"{files[1]} has the label {labels.max()}, but digits go from 0 to 9; fetch it again")
    return torch.from_numpy(images).float().div(255).unsqueeze(1), torch.from_numpy(labels).long()


@sources.register("mnist")
@dataclass(frozen=True)
class Mnist(Source):
    """70,000 handwritten digits; the official training and test parts are merged and split again per client."""

    title: ClassVar[str] = "MNIST handwritten digits, training and test part merged"
    licence: ClassVar[str] = "CC BY-SA 3.0 (LeCun, Cortes, Burges)"
    size: ClassVar[str] = "70,000 samples, 1 x 28 x 28, 10 classes"
    papers: ClassVar[str] = "FedLAG, LG-Mix (as a domain of Digits-Five)"

    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    seed: int = option(0, min=0, help="determines that part")
    path: str | None = option(None, help="the folder of the files; by default $IDIOLECT_DATA/mnist")

    @property
    def _folder(self) -> Folder:
        return Folder("mnist", _TRAIN + _TEST, self.path)

    def where(self) -> str:
        """Which files to put where."""
        return self._folder.where()

    def available(self) -> bool:
        """Whether all files are there."""
        return not self._folder.missing()

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        parts = [_read(self._folder, files) for files in (_TRAIN, _TEST)]
        x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        if self.samples is not None:
            if self.samples > len(x):
                raise DataError(f"mnist: samples={self.samples} is more than the {len(x)} there are; ask for fewer")
            chosen = np.sort(generator(self.seed, "subset").choice(len(x), self.samples, replace=False))
            x, y = x[torch.from_numpy(chosen)], y[torch.from_numpy(chosen)]
        return Pool(x, y, None, 10, "mnist")


@sources.register("mnist-writers")
@dataclass(frozen=True)
class MnistWriters(Source):
    """MNIST's training part by writer: real people as clients, each with a hand of their own."""

    title: ClassVar[str] = "MNIST's training part by writer (writers from QMNIST)"
    licence: ClassVar[str] = "CC BY-SA 3.0 (MNIST), BSD 3-clause (QMNIST)"
    size: ClassVar[str] = "60,000 samples, 1 x 28 x 28, 10 classes"
    groups: ClassVar[str] = "539 writers with 19 to 131 samples each"
    papers: ClassVar[str] = "stands in for the digits of FEMNIST (pFedGate, FedFac)"

    writers: int | None = option(None, min=1, help="take a random choice of this many writers")
    seed: int = option(0, min=0, help="determines that choice")
    path: str | None = option(None, help="the folder of the files; by default $IDIOLECT_DATA/mnist")

    @property
    def _folder(self) -> Folder:
        return Folder("mnist", (*_TRAIN, _WRITERS), self.path)

    def where(self) -> str:
        """Which files to put where."""
        return self._folder.where()

    def available(self) -> bool:
        """Whether all files are there."""
        return not self._folder.missing()

    def load(self) -> Pool:
        """The pool, scaled to [0, 1], with the writers as groups."""
        x, y = _read(self._folder, _TRAIN)
        table = read_idx(self._folder.require()[2], dimensions=2)
        if table.shape[1] <= _WRITER or not np.array_equal(table[:, _CLASS], y.numpy()):
            raise DataError(f"{_WRITERS} does not describe the samples of {_TRAIN[1]}; fetch both again")
        writers, known = table[:, _WRITER], np.unique(table[:, _WRITER])
        if self.writers is not None:
            if self.writers > len(known):
                raise DataError(
                    f"mnist-writers: writers={self.writers} is more than the {len(known)} there are; ask for fewer"
                )
            chosen = generator(self.seed, "subset").choice(known, self.writers, replace=False)
            kept = np.flatnonzero(np.isin(writers, chosen))
            x, y, writers = x[torch.from_numpy(kept)], y[torch.from_numpy(kept)], writers[kept]
        return Pool(x, y, writers, 10, "mnist-writers")
