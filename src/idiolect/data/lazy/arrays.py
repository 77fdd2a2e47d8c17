"""Samples in an array that is kept as it is: memory-mapped, or bytes that become numbers batch by batch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor

from ..samples import PART, Draw, Samples

NAMED = 1 << 30
"""Bytes of a memory-mapped array that its fingerprint reads at most, evenly spread."""


class ArraySamples(Samples):
    """Rows of a NumPy array or of a tensor."""

    def __init__(self, values: np.ndarray | Tensor) -> None:
        self.values = values
        self.shape = torch.Size(values.shape)
        empty = self._convert(values[:0])
        self.dtype = empty.dtype
        self.finite = not values.dtype.is_floating_point if isinstance(values, Tensor) else values.dtype.kind != "f"

    @property
    def row_bytes(self) -> int:
        """The size of a row in the array."""
        return prod(self.shape[1:]) * self.values.dtype.itemsize

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Rows as numbers, or as tokens."""
        values = self.values
        rows = values.index_select(0, positions) if isinstance(values, Tensor) else values[positions.numpy()]
        return self._convert(rows), y

    def _convert(self, rows: np.ndarray | Tensor) -> Tensor:
        if isinstance(rows, np.ndarray):
            if rows.dtype.kind == "u" and rows.dtype.itemsize > 1:
                rows = rows.astype(np.int64)
            rows = torch.from_numpy(np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C"))
        numbers = rows.is_floating_point() or rows.dtype in (torch.uint8, torch.bool)
        return rows.float() if numbers else rows.long()

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """The rows, as a batch holds them; of a memory-mapped array so many as make a gigabyte."""
        if isinstance(self.values, np.memmap):
            positions = positions[:: -(-len(positions) * self.row_bytes // NAMED) or 1]
        for part in torch.split(positions, PART):
            yield self.read(part, part, "", None)[0].numpy().tobytes()
            self._release()

    def largest(self) -> int:
        """The largest token."""
        most = -1
        for start in range(0, len(self), PART):
            most = max(most, int(self._convert(self.values[start : start + PART]).max()))
            self._release()
        return most

    def _release(self) -> None:
        """Give back the memory that looking at all rows took."""
        mapped = getattr(self.values, "_mmap", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
