"""Digits-Five: handwritten and printed digits of five origins, each a client of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.errors import DataError, MissingExtraError
from ...core.options import option
from ..formats.files import Layout, check_sum, read_bytes, read_text, unreadable
from ..formats.images import Images, Joined, Listed, Stored
from ..formats.packed import check_labels, packed_images, read_hdf5, read_mat
from .base import ImageSource, Pool, choose, sources
from .mnist import SUMS, read_pair

Part = tuple[Images, np.ndarray]
Found = Mapping[str, Path]


def _join(parts: list[Part]) -> Part:
    return Joined([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _idx(paths: Found) -> Part:
    files = list(paths)
    return _join([read_pair(dict(paths), tuple(files[at : at + 2])) for at in (0, 2)])


def _webp(paths: Found) -> Part:
    (path,) = paths.values()
    parts = [packed_images(path, f"{part}_") for part in ("train", "test")]
    return _join([(images, check_labels(path, labels, 10)) for images, labels in parts])


def _mat(paths: Found) -> Part:
    """SVHN's format 2: X [height, width, channels, n] and y, in which 10 stands for 0."""
    parts: list[Part] = []
    for path in paths.values():
        arrays = read_mat(path, ["X", "y"])
        images, labels = arrays["X"], arrays["y"].reshape(-1).astype(np.int64)
        if images.ndim != 4 or images.shape[3] != len(labels):
            raise DataError(
                f"{path}: images of shape {list(images.shape)} do not fit {len(labels)} labels; fetch it again"
            )
        labels = check_labels(path, np.where(labels == 10, 0, labels), 10)
        parts.append((Stored(np.ascontiguousarray(images.transpose(3, 2, 0, 1))), labels))
    return _join(parts)


def _usps_h5(paths: Found) -> Part:
    """Groups train and test with data [n, 256] in [0, 1] and target."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "usps.h5 needs h5py: pip install idiolect[hdf5]; or use usps.bz2 and usps.t.bz2"
        ) from error
    (path,) = paths.values()
    train, target, test, test_target = read_hdf5(path, ["train/data", "train/target", "test/data", "test/target"])
    parts = ((train, target), (test, test_target))
    return _join([(_grey(path, data), check_labels(path, labels, 10)) for data, labels in parts])


def _usps_libsvm(paths: Found) -> Part:
    """Lines "label 1:value ... 256:value" with labels from 1 on and values in [-1, 1]."""
    parts: list[Part] = []
    for path in paths.values():
        try:
            rows = [line.split() for line in read_bytes(path).decode("ascii").splitlines() if line.strip()]
            labels = np.array([int(float(row[0])) for row in rows])
            data = np.array([[float(cell.partition(":")[2]) for cell in row[1:]] for row in rows])
        except ValueError as error:
            raise unreadable(path, error) from error
        parts.append((_grey(path, (data + 1) / 2), check_labels(path, labels, 10, start=1)))
    return _join(parts)


def _grey(path: Path, data: np.ndarray) -> Stored:
    if data.ndim != 2 or data.shape[1] != 256:
        raise DataError(f"{path}: images have {list(data.shape[1:])} values instead of 16 x 16; it is another file")
    return Stored((data.clip(0, 1) * 255).round().astype(np.uint8).reshape(-1, 16, 16))


def _mnistm(paths: Found) -> Part:
    """A folder of PNG files per part, and a list of lines "file label"."""
    (root,) = paths.values()
    parts: list[Part] = []
    for part in ("train", "test"):
        lines = [line.split() for line in read_text(root / f"mnist_m_{part}_labels.txt").splitlines() if line.strip()]
        if any(len(line) != 2 or not line[1].isdigit() for line in lines):
            raise DataError(
                f"{root / f'mnist_m_{part}_labels.txt'}: lines must be a file and its label; fetch it again"
            )
        labels = check_labels(root, np.array([int(line[1]) for line in lines]), 10)
        parts.append((Listed([root / f"mnist_m_{part}" / line[0] for line in lines]), labels))
    return _join(parts)


_SVHN = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}
DOMAINS: dict[str, list[tuple[Layout, Callable[[Found], Part]]]] = {
    "mnist": [(Layout("mnist", tuple(SUMS)), _idx)],
    "svhn": [(Layout("digits5", tuple(_SVHN)), _mat), (Layout("digits5", ("svhn_webp.npz",)), _webp)],
    "usps": [
        (Layout("digits5", ("usps.h5",)), _usps_h5),
        (Layout("digits5", ("usps", "usps.t"), "LIBSVM's files"), _usps_libsvm),
    ],
    "mnistm": [
        (Layout("digits5", ("mnist_m/",), "images and lists of labels"), _mnistm),
        (Layout("digits5", ("mnistm_webp.npz",)), _webp),
    ],
    "synth": [(Layout("digits5", ("synth_train_32x32.mat", "synth_test_32x32.mat")), _mat)],
}


@sources.register("digits5", "digits-five")
@dataclass(frozen=True)
class Digits5(ImageSource):
    """MNIST, SVHN, USPS, MNIST-M and SynthDigits as clients, brought to one size and three channels. Without `domains`,
    all that are there are taken."""

    title: ClassVar[str] = "Digits-Five: MNIST, SVHN, USPS, MNIST-M, SynthDigits"
    licence: ClassVar[str] = "MNIST CC BY-SA 3.0, SVHN non-commercial, MNIST-M as MNIST and BSDS, others none stated"
    size: ClassVar[str] = "up to 215,695 samples, 3 x 28 x 28, 10 classes"
    groups: ClassVar[str] = "5 domains"
    papers: ClassVar[str] = "LG-Mix, FedBN"
    checksums: ClassVar[dict[str, str]] = {**SUMS, **_SVHN}

    domains: tuple[str, ...] = option((), choices=tuple(DOMAINS), help="which domains; none is all that are there")
    per_domain: int | None = option(None, min=1, help="take a random part of this many samples of each domain")
    side: int = option(28, min=8, help="pixels to which images are brought")
    verify: bool = option(True, help="compare MNIST's and SVHN's files with the publishers' checksums")

    def _readers(self, domain: str) -> list[tuple[Layout, Callable[[Found], Part]]]:
        return [reader for reader in DOMAINS[domain] if not reader[0].missing(self.path)]

    def where(self) -> str:
        """Which files to put where."""
        ways = {name: " or ".join(layout.where(self.path) for layout, _ in known) for name, known in DOMAINS.items()}
        fetched = [f"{way} (all but mnistm and synth)" for way in self.fetching()]
        return "; ".join([*fetched, *(f"{name}: {way}" for name, way in ways.items())])

    def available(self) -> bool:
        """Whether at least one domain, or every named one, is there."""
        return all(map(self._readers, self.domains)) if self.domains else any(map(self._readers, DOMAINS))

    def load(self) -> Pool:
        """The pool, scaled to [0, 1], with the domains as groups."""
        wanted = self.domains or tuple(name for name in DOMAINS if self._readers(name))
        lacking = [name for name in wanted if not self._readers(name)]
        if lacking or not wanted:
            raise DataError(f"digits5: {', '.join(lacking or DOMAINS)} not found. To use it, {self.where()}.")
        taken, labels = [], []
        for domain in wanted:
            layout, read = self._readers(domain)[0]
            paths = layout.paths(self.path)
            for file, path in paths.items():
                if self.verify and file in self.checksums:
                    check_sum(path, self.checksums[file], content=True)
            images, domain_labels = read(paths)
            index = choose(f"digits5, {domain}", len(domain_labels), self.per_domain, self.seed)
            pixels = Joined([images], self.side).take(index)
            taken.append(Stored(np.repeat(pixels, 3 // pixels.shape[1], axis=1)))
            labels.append(domain_labels[index])
        groups = np.repeat(np.array(wanted), [len(domain_labels) for domain_labels in labels])
        return self.image_pool(Joined(taken), np.concatenate(labels), 10, groups)
