"""Images of a data set of Hugging Face, decoded when a batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ..formats.images import to_inputs
from ..samples import Draw, Samples


class HubImages(Samples):
    """A column of images of one size, as numbers in [0, 1]."""

    finite = True

    def __init__(self, table: Any, column: str) -> None:
        self.table, self.column = table.select_columns([column]), column
        first = table[0][column]
        self.mode = "L" if first.mode in ("1", "L") else "RGB"
        shape = (1 if self.mode == "L" else 3, first.height, first.width)
        self.shape, self.raw = torch.Size((len(table), *shape)), (shape, np.dtype(np.uint8))

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """The images, out of the cache where they are known."""
        numbers = positions.tolist()
        rows = np.empty((len(numbers), *self.shape[1:]), np.uint8)
        missing = self.store.fill(numbers, rows) if self.store else list(range(len(numbers)))
        for place in missing:
            image = np.asarray(self.table[numbers[place]][self.column].convert(self.mode))
            image = image[None] if self.mode == "L" else image.transpose(2, 0, 1)
            if image.shape != rows.shape[1:]:
                raise DataError(
                    f"{owner}, sample {numbers[place]}: the image has {image.shape[2]} x {image.shape[1]} pixels, the"
                    f" first one {rows.shape[3]} x {rows.shape[2]}; bring them to one size"
                )
            rows[place] = image
            if self.store:
                self.store.put(numbers[place], rows[place])
        return to_inputs(rows), y

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """The package's own fingerprint of the table, and which rows of it."""
        yield f"{self.table._fingerprint} {self.column} {self.mode}".encode()
        yield positions.numpy().tobytes()
