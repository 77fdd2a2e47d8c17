"""CIFAR-10, CIFAR-100 and Tiny-ImageNet: their published files, and compact files of encoded images."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import BROKEN, Layout, read_bytes, read_text, unreadable
from ..formats.images import Joined, Listed, Stored, is_image
from ..formats.packed import check_labels, packed_images
from .base import ImageSource, Pool, sources

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Arrays(pickle.Unpickler):
    """An unpickler that can make arrays and nothing else, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_batch(path: Path, label: str) -> tuple[Stored, np.ndarray]:
    """Images and labels of a file of CIFAR's Python version."""
    try:
        content = _Arrays(io.BytesIO(read_bytes(path)), encoding="bytes").load()
        data, labels = np.asarray(content[b"data"]), np.asarray(content[label.encode()])
    except (pickle.UnpicklingError, KeyError, TypeError, AttributeError, ImportError, IndexError, *BROKEN) as error:
        raise unreadable(path, error) from error
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072 or len(data) != len(labels):
        raise DataError(f"{path} does not hold images of 3 x 32 x 32 and a label for each; fetch it again")
    return Stored(data.reshape(-1, 3, 32, 32)), labels


@dataclass(frozen=True)
class Cifar(ImageSource):
    """What CIFAR-10 and CIFAR-100 share."""

    licence: ClassVar[str] = "none stated by the publisher (Krizhevsky, 2009)"
    label: ClassVar[str] = "labels"
    classes: ClassVar[int] = 10

    verify: bool = option(True, help="compare the files with the publisher's checksums")

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        kind, paths = self.find(self.verify)
        if kind == "jpeg":
            (path,) = paths.values()
            parts: list[Any] = [packed_images(path, f"{part}_", "jpeg") for part in ("train", "test")]
        else:
            parts = [read_batch(path, self.label) for path in paths.values()]
        labels = check_labels(self.name, np.concatenate([part[1] for part in parts]), self.classes)
        name = f"{self.name}-jpeg" if kind == "jpeg" else self.name
        return self.image_pool(Joined([part[0] for part in parts]), labels, self.classes, name=name)


_BATCHES = {
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
}


@sources.register("cifar10")
@dataclass(frozen=True)
class Cifar10(Cifar):
    """60,000 small colour pictures; training and test parts merged. The compact file holds lossy JPEGs, so results on
    it carry the name cifar10-jpeg."""

    title: ClassVar[str] = "CIFAR-10"
    size: ClassVar[str] = "60,000 samples, 3 x 32 x 32, 10 classes; training and test part merged"
    papers: ClassVar[str] = "FedLAG, FLAYER, pFedGate, FedFac"
    layouts: ClassVar[dict[str, Layout]] = {
        "python": Layout("cifar10", tuple(_BATCHES), "the Python version"),
        "jpeg": Layout(".", ("cifar10_jpeg.npz",)),
    }
    checksums: ClassVar[dict[str, str]] = _BATCHES


_FILES = {
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


@sources.register("cifar100")
@dataclass(frozen=True)
class Cifar100(Cifar):
    """60,000 small colour pictures of 100 classes; training and test parts merged."""

    title: ClassVar[str] = "CIFAR-100"
    size: ClassVar[str] = "60,000 samples, 3 x 32 x 32, 100 classes; training and test part merged"
    papers: ClassVar[str] = "FedLAG, FLAYER, pFedGate, FedFac"
    label: ClassVar[str] = "fine_labels"
    classes: ClassVar[int] = 100
    layouts: ClassVar[dict[str, Layout]] = {"python": Layout("cifar100", tuple(_FILES), "the Python version")}
    checksums: ClassVar[dict[str, str]] = _FILES


@sources.register("tiny-imagenet")
@dataclass(frozen=True)
class TinyImagenet(ImageSource):
    """110,000 pictures of 200 classes; training and validation parts merged, the test part has no labels."""

    title: ClassVar[str] = "Tiny ImageNet"
    licence: ClassVar[str] = "non-commercial research (ImageNet's terms)"
    size: ClassVar[str] = "110,000 samples, 3 x 64 x 64, 200 classes; training and validation part merged"
    papers: ClassVar[str] = "FLAYER"
    layouts: ClassVar[dict[str, Layout]] = {"folders": Layout("tiny-imagenet", ("tiny-imagenet-200/",))}
    note: ClassVar[str] = "It holds wnids.txt, train/ and val/, as the published archive has them"

    side: int | None = option(None, min=8, help="resize to this side; none keeps 64 pixels")

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        _, paths = self.find()
        (root,) = paths.values()
        known = {name: at for at, name in enumerate(read_text(root / "wnids.txt").split())}
        files = [
            (path, name)
            for name in known
            for path in sorted((root / "train" / name / "images").glob("*"))
            if is_image(path)
        ]
        for line in read_text(root / "val" / "val_annotations.txt").splitlines():
            image, name, *_ = [*line.split("\t"), ""]
            files.append((root / "val" / "images" / image, name))
        strange = next((name for _, name in files if name not in known), None)
        if strange is not None or not files:
            raise DataError(f"{root}: the class {strange!r} is not in wnids.txt; fetch the set again")
        labels = np.array([known[name] for _, name in files])
        return self.image_pool(Listed([path for path, _ in files], self.side), labels, len(known))


@sources.register("tiny-imagenet-100")
@dataclass(frozen=True)
class TinyImagenet100(ImageSource):
    """12,500 pictures of 100 of Tiny ImageNet's classes, reduced to 32 pixels: a problem of 100 classes in one file. It
    is not CIFAR-100."""

    title: ClassVar[str] = "100 classes of Tiny ImageNet at 32 pixels, compact file"
    licence: ClassVar[str] = "non-commercial research (ImageNet's terms)"
    size: ClassVar[str] = "12,500 samples, 3 x 32 x 32, 100 classes"
    papers: ClassVar[str] = "stands in for CIFAR-100"
    layouts: ClassVar[dict[str, Layout]] = {"jpeg": Layout(".", ("tinyimagenet100_32px_jpeg.npz",))}

    def load(self) -> Pool:
        """The pool, scaled to [0, 1]."""
        _, paths = self.find()
        (path,) = paths.values()
        parts = [packed_images(path, f"{part}_") for part in ("train", "test")]
        labels = check_labels(path, np.concatenate([part[1] for part in parts]), 100)
        return self.image_pool(Joined([part[0] for part in parts]), labels, 100)
