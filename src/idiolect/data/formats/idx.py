"""The IDX file format of MNIST and its relatives: two zero bytes, a type, a number of dimensions, the
dimensions as big-endian 32-bit numbers, then the values and nothing else."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from ...core.errors import DataError
from .files import read_bytes

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path, dimensions: int | None = None) -> np.ndarray:
    """The array in an IDX file, plain or compressed; any damage is a `DataError`.

    >>> path = getfixture("tmp_path") / "labels-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> read_idx(path)
    array([7, 2, 1], dtype=uint8)
    """
    raw = read_bytes(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise DataError(f"{path} is no IDX file: it begins with {raw[:4].hex(' ') or 'nothing'}; fetch it again")
    kind, rank = np.dtype(_TYPES[raw[2]]), raw[3]
    if dimensions is not None and rank != dimensions:
        raise DataError(f"{path} has {rank} dimensions instead of {dimensions}; it is another file than its name says")
    start = 4 + 4 * rank
    if rank == 0 or len(raw) < start:
        raise DataError(f"{path} ends within its header; fetch it again")
    shape = struct.unpack(f">{rank}I", raw[4:start])
    expected = start + math.prod(shape) * kind.itemsize
    if len(raw) != expected:
        raise DataError(f"{path} has {len(raw)} bytes, but its header promises {expected}; fetch it again")
    return np.frombuffer(raw, dtype=kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
