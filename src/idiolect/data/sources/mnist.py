"""MNIST and its relatives from their IDX files: MNIST, with writers, Fashion-MNIST and EMNIST."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.errors import DataError
from ...core.options import option
from ...core.randomness import generator
from ..formats.files import Layout
from ..formats.idx import read_idx
from ..formats.images import Joined, Stored
from ..formats.packed import check_labels
from .base import ImageSource, Pool, sources

SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER, _CLASS = 2, 0


def read_pair(
    paths: dict[str, Path], files: tuple[str, ...], classes: int = 10, start: int = 0
) -> tuple[Stored, np.ndarray]:
    """Images and labels from 0 on, checked against each other."""
    images, labels = read_idx(paths[files[0]], dimensions=3), read_idx(paths[files[1]], dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{files[0]} has {len(images)} images, but {files[1]} {len(labels)} labels; fetch both again")
    return Stored(images), check_labels(files[1], labels, classes, start)


@sources.register("mnist")
@dataclass(frozen=True)
class Mnist(ImageSource):
    """70,000 handwritten digits; the official training and test parts are merged and split again per client."""

    title: ClassVar[str] = "MNIST handwritten digits"
    licence: ClassVar[str] = "CC BY-SA 3.0 (LeCun, Cortes, Burges)"
    size: ClassVar[str] = "70,000 samples, 1 x 28 x 28, 10 classes; training and test part merged"
    papers: ClassVar[str] = "FedLAG, LG-Mix (as a domain of Digits-Five)"
    layouts: ClassVar[dict[str, Layout]] = {"idx": Layout("mnist", _TRAIN + _TEST)}
    checksums: ClassVar[dict[str, str]] = SUMS

    verify: bool = option(True, help="compare the files with the publisher's checksums")

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        _, paths = self.find(self.verify)
        parts = [read_pair(paths, files) for files in (_TRAIN, _TEST)]
        return self.image_pool(Joined([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), 10)


@sources.register("fashion-mnist", "fmnist")
@dataclass(frozen=True)
class FashionMnist(Mnist):
    """70,000 pictures of clothes in MNIST's format; training and test parts merged."""

    title: ClassVar[str] = "Fashion-MNIST, pictures of clothes"
    licence: ClassVar[str] = "MIT (Zalando)"
    papers: ClassVar[str] = ""
    layouts: ClassVar[dict[str, Layout]] = {"idx": Layout("fashion-mnist", _TRAIN + _TEST)}
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }


@sources.register("mnist-writers")
@dataclass(frozen=True)
class MnistWriters(ImageSource):
    """MNIST's training part by writer: real people as clients, each with a hand of their own."""

    title: ClassVar[str] = "MNIST's training part by writer (QMNIST's list)"
    licence: ClassVar[str] = "CC BY-SA 3.0 (MNIST), BSD 3-clause (QMNIST)"
    size: ClassVar[str] = "60,000 samples, 1 x 28 x 28, 10 classes"
    groups: ClassVar[str] = "539 writers with 19 to 131 samples each"
    papers: ClassVar[str] = "stands in for the digits of FEMNIST (pFedGate, FedFac)"
    layouts: ClassVar[dict[str, Layout]] = {"idx": Layout("mnist", (*_TRAIN, _WRITERS))}
    checksums: ClassVar[dict[str, str]] = {**SUMS, _WRITERS: "1d43300e7f41ddcbf7fd006cbe865af9"}

    writers: int | None = option(None, min=1, help="take a random choice of this many writers")
    verify: bool = option(True, help="compare the files with the publisher's checksums")

    def load(self) -> Pool:
        """The pool, scaled to [0, 1], with the writers as groups."""
        _, paths = self.find(self.verify)
        images, labels = read_pair(paths, _TRAIN)
        table = read_idx(paths[_WRITERS], dimensions=2)
        if table.shape[1] <= _WRITER or not np.array_equal(table[:, _CLASS], labels):
            raise DataError(f"{_WRITERS} does not describe the samples of {_TRAIN[1]}; fetch both again")
        index = in_groups(self.name, "writers", table[:, _WRITER], self.writers, self.seed)
        return self.image_pool(Stored(images.array[index]), labels[index], 10, table[index, _WRITER])


def in_groups(name: str, kind: str, groups: np.ndarray, wanted: int | None, seed: int) -> np.ndarray:
    """The numbers of the samples in a random choice of groups; all without a wanted number.

    >>> in_groups("mnist-writers", "writers", np.array([7, 8, 7]), 1, seed=1).tolist() in ([0, 2], [1])
    True
    """
    if wanted is None:
        return np.arange(len(groups))
    known = np.unique(groups)
    if wanted > len(known):
        raise DataError(f"{name}: {kind}={wanted} is more than the {len(known)} there are; ask for fewer")
    return np.flatnonzero(np.isin(groups, generator(seed, "subset").choice(known, wanted, replace=False)))


@dataclass(frozen=True)
class Emnist(ImageSource):
    """A part of EMNIST: handwritten letters and digits. The files hold images mirrored at the diagonal; these are
    upright."""

    licence: ClassVar[str] = "public domain (NIST Special Database 19)"
    papers: ClassVar[str] = "stands in for EMNIST ByClass (FedLAG, pFedGate)"
    classes: ClassVar[int] = 0
    start: ClassVar[int] = 0
    note: ClassVar[str] = "The files come in gzip.zip of the EMNIST page at NIST"

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        _, paths = self.find()
        files = list(paths)
        parts = [read_pair(paths, tuple(files[at : at + 2]), self.classes, self.start) for at in (0, 2)]
        upright = [Stored(images.array.transpose(0, 2, 1)) for images, _ in parts]
        return self.image_pool(Joined(upright), np.concatenate([labels for _, labels in parts]), self.classes)


def _files(part: str) -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"emnist-{part}-{which}-{kind}" for which in ("train", "test") for kind in kinds)


@sources.register("emnist-letters")
@dataclass(frozen=True)
class EmnistLetters(Emnist):
    """EMNIST Letters: 26 classes, capital and small letters together."""

    title: ClassVar[str] = "EMNIST Letters"
    size: ClassVar[str] = "145,600 samples, 1 x 28 x 28, 26 classes; training and test part merged"
    classes: ClassVar[int] = 26
    start: ClassVar[int] = 1
    layouts: ClassVar[dict[str, Layout]] = {
        "idx": Layout("emnist", _files("letters")),
        "own": Layout("emnist_letters", _files("letters")),
    }


@sources.register("emnist-balanced")
@dataclass(frozen=True)
class EmnistBalanced(Emnist):
    """EMNIST Balanced: 47 classes of equal size; letters whose capital looks alike are one class."""

    title: ClassVar[str] = "EMNIST Balanced"
    size: ClassVar[str] = "131,600 samples, 1 x 28 x 28, 47 classes; training and test part merged"
    classes: ClassVar[int] = 47
    layouts: ClassVar[dict[str, Layout]] = {"idx": Layout("emnist", _files("balanced"))}


@sources.register("emnist-byclass", "emnist")
@dataclass(frozen=True)
class EmnistByClass(Emnist):
    """EMNIST ByClass: all 62 digits, capital and small letters."""

    title: ClassVar[str] = "EMNIST ByClass"
    size: ClassVar[str] = "814,255 samples, 1 x 28 x 28, 62 classes; training and test part merged"
    papers: ClassVar[str] = "FedLAG, pFedGate"
    classes: ClassVar[int] = 62
    layouts: ClassVar[dict[str, Layout]] = {"idx": Layout("emnist", _files("byclass"))}
