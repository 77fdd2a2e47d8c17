"""Samples that are image files: sizes are known from the headers, pixels are decoded when they are needed."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.reading import track
from ..formats.files import BROKEN, unreadable
from ..formats.images import NONE, Listed, decode, no_image, sides, to_inputs
from ..samples import Draw, Samples

_ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND"}
"""How JPEG and PNG files end, by how they begin."""


class Header(NamedTuple):
    """What is known of an image without its pixels."""

    height: int
    width: int
    digest: bytes


class ImageSamples(Samples):
    """Image files of one size, or brought to one, as numbers in [0, 1] or normalised by named constants."""

    finite = True

    def __init__(self, images: Listed, normalise: str = NONE, progress: str = "looking through the images") -> None:
        self.images, self.normalise = images, normalise
        headers = [read_header(path) for path in track(images.paths, len(images), progress)]
        height, width = (images.size, images.size) if images.size else _one_size(images.paths, headers)
        channels = 1 if images.mode == "L" else 3
        self.shape = torch.Size((len(images), channels, height, width))
        self.raw = ((channels, height, width), np.dtype(np.uint8))
        self.digests = [header.digest for header in headers]
        self._manner = f"{images.size} {images.mode} {normalise}".encode()
        self.key = hashlib.sha256(repr(self.raw).encode() + self._manner + b"".join(self.digests)).hexdigest()
        to_inputs(np.zeros((1, channels, 1, 1), np.uint8), normalise)  # which says whether the constants fit

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """The images, out of the cache where they are known."""
        assert self.raw is not None
        numbers = positions.tolist()
        rows = np.empty((len(numbers), *self.raw[0]), np.uint8)
        missing = self.store.fill(numbers, rows) if self.store else range(len(numbers))
        for place in missing:
            path = self.images.paths[numbers[place]]
            image = self.images.read(path)
            if image.shape != rows.shape[1:]:
                raise DataError(f"{path} has {sides(image)} now and had {sides(rows[place])} before; put it back")
            rows[place] = image
            if self.store:
                self.store.put(numbers[place], rows[place])
        return to_inputs(rows, self.normalise), y

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """Hashes of the files, and what becomes of them."""
        yield self._manner
        yield b"".join(self.digests[at] for at in positions.tolist())


def read_header(path: Path) -> Header:
    """What an image file says of itself, and the hash of its bytes; an error where it is none, or cut off."""
    from PIL import Image  # which takes long to import

    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        with Image.open(io.BytesIO(raw)) as image:
            width, height = image.size
    except (Image.DecompressionBombError, SyntaxError, *BROKEN) as error:
        raise no_image(str(path), error) from error
    if (end := _ENDS.get(raw[:2])) and end not in raw[-64:]:
        decode(raw, str(path))  # other things may follow an image
    return Header(height, width, hashlib.sha256(raw).digest())


def _one_size(paths: Sequence[Path], headers: Sequence[Header]) -> tuple[int, int]:
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        if header[:2] != first[:2]:
            raise DataError(
                f"images of different sizes in the folder: {paths[0]} has {first.width} x {first.height} pixels, {path}"
                f" has {header.width} x {header.height} pixels; resize them, or give side=..., the pixels to which all"
                " are brought"
            )
    return first[:2]
