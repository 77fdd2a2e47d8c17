"""Images as arrays: encoded ones decoded when they are taken, so that a part of a set costs only that part. All kinds
give uint8 [samples, channels, height, width]; scaling and normalisation happen once, in `to_inputs`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...core.errors import DataError
from .files import BROKEN, unreadable

Bytes = NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Channel means and deviations that are subtracted from, and divide, values in [0, 1]."""
NONE = "none"


class Images(Protocol):
    """Images of one size that can be taken by number."""

    def __len__(self) -> int: ...

    def take(self, index: np.ndarray) -> Bytes:
        """Some images, uint8 [samples, channels, height, width]."""
        ...


@dataclass(frozen=True, eq=False)
class Stored:
    """Images that are an array already: [n, h, w], [n, h, w, c] or [n, c, h, w]."""

    array: np.ndarray

    def __len__(self) -> int:
        return len(self.array)

    def take(self, index: np.ndarray) -> Bytes:
        """Some images."""
        part: Bytes = self.array[index]
        if part.ndim == 3:
            return part[:, None]
        return part if part.shape[1] in (1, 3) else np.ascontiguousarray(part.transpose(0, 3, 1, 2))


@dataclass(frozen=True, eq=False)
class Packed:
    """Encoded images one after another in one array of bytes, with n + 1 offsets."""

    data: Bytes
    offset: np.ndarray
    name: str
    mode: str = "RGB"

    def __len__(self) -> int:
        return len(self.offset) - 1

    def take(self, index: np.ndarray) -> Bytes:
        """Some images, decoded."""
        parts = (
            (self.data[self.offset[at] : self.offset[at + 1]].tobytes(), f"image {at} of {self.name}") for at in index
        )
        return _stack(((decode(raw, label, self.mode), label) for raw, label in parts), len(index), self.name)


@dataclass(frozen=True, eq=False)
class Listed:
    """Image files; with `size`, all are resize to squares of that side."""

    paths: Sequence[Path]
    size: int | None = None
    mode: str = "RGB"

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, index: np.ndarray) -> Bytes:
        """Some images, read and decoded."""
        chosen = (self.paths[at] for at in index)
        return _stack(((self.read(path), str(path)) for path in chosen), len(index), "the folder")

    def read(self, path: Path) -> Bytes:
        """One image."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        return decode(raw, str(path), self.mode, self.size)


@dataclass(frozen=True, eq=False)
class Joined:
    """Several bodies of images as one; with `size`, resize to it; grey ones become RGB where others are."""

    parts: Sequence[Images]
    size: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def take(self, index: np.ndarray) -> Bytes:
        """Some images, in the order of `index`, which must rise."""
        taken, start = [], 0
        for part in self.parts:
            positions = index[(index >= start) & (index < start + len(part))] - start
            start += len(part)
            if len(positions):
                taken.append(resize(part.take(positions), self.size))
        if not taken:
            return np.zeros((0, 1, 1, 1), np.uint8)
        colours = max(part.shape[1] for part in taken)
        return np.concatenate([np.repeat(part, colours // part.shape[1], axis=1) for part in taken])


def decode(raw: bytes, name: str, mode: str = "RGB", size: int | None = None) -> Bytes:
    """One encoded image as uint8 [channels, height, width]; damage is a `DataError`."""
    from PIL import Image  # which takes long to import

    try:
        with Image.open(io.BytesIO(raw)) as image:
            shown = image.convert(mode)
            if size is not None and shown.size != (size, size):
                shown = shown.resize((size, size), Image.Resampling.BILINEAR)
            pixels: Bytes = np.array(shown)
    except (Image.DecompressionBombError, SyntaxError, *BROKEN) as error:
        raise no_image(name, error) from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def no_image(name: str, error: BaseException) -> DataError:
    """The error of a file that is no image."""
    reason = str(error).partition(" <_io")[0]
    return DataError(f"{name} is no image that can be read ({reason}); replace it or leave it out")


def resize(images: Bytes, size: int | None) -> Bytes:
    """Images brought to squares of one side, bilinear with anti-aliasing.

    >>> resize(np.full((2, 1, 16, 16), 7, np.uint8), 28).shape
    (2, 1, 28, 28)
    """
    if size is None or images.shape[2:] == (size, size):
        return images
    parts = torch.split(torch.from_numpy(images), 1024)
    done = [F.interpolate(p.float(), (size, size), mode="bilinear", antialias=True).round().byte() for p in parts]
    return torch.cat(done).numpy()


def to_inputs(images: Bytes, normalise: str = NONE) -> Tensor:
    """Images as float32 in [0, 1], or normalised by named constants.

    >>> to_inputs(np.full((1, 1, 2, 2), 255, np.uint8), "half")[0, 0, 0]
    tensor([1., 1.])
    """
    x = torch.from_numpy(images).to(torch.float32).div_(255)
    if normalise != NONE:
        mean, deviation = (torch.tensor(constants).reshape(1, -1, 1, 1) for constants in NORMALISATIONS[normalise])
        if mean.shape[1] not in (1, x.shape[1]):
            raise DataError(
                f"normalise={normalise} has constants for {mean.shape[1]} channels, but these images have {x.shape[1]};"
                " use half or none"
            )
        x = x.sub_(mean).div_(deviation)
    return x


def is_image(path: Path) -> bool:
    """Whether a file's name is that of an image, and not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _stack(images: Iterator[tuple[Bytes, str]], count: int, name: str) -> Bytes:
    """Images of one shape as one array, which is filled as they come."""
    first, label = next(images)
    stacked = np.empty((count, *first.shape), np.uint8)
    stacked[0] = first
    for at, (image, other) in enumerate(images, start=1):
        if image.shape != first.shape:
            raise DataError(
                f"images of different sizes in {name}: {label} has {sides(first)}, {other} has {sides(image)};"
                " resize them, or give side=..., the pixels to which all are brought"
            )
        stacked[at] = image
    return stacked


def sides(image: Bytes) -> str:
    """Width and height in words."""
    return f"{image.shape[2]} x {image.shape[1]} pixels"
