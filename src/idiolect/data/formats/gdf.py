"""The general data format for biomedical signals (.gdf, versions 1 and 2): signals of one rate, and events."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...core.errors import DataError
from .files import BROKEN, unreadable

TYPES = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 16: "<f4", 17: "<f8"}
"""The numbers that a file may hold."""
FIXED = PER_CHANNEL = 256
"""Bytes of the header before the channels', and of each channel in it."""


class Gdf(NamedTuple):
    """Signals (times x channels) in physical units, samples per second, and where (from 0 on) which events are."""

    signals: np.ndarray
    rate: float
    places: np.ndarray
    kinds: np.ndarray


def read_gdf(path: Path) -> Gdf:
    """The signals and events of a file."""
    try:
        content = path.read_bytes()
        return _parse(path, content)
    except (IndexError, *BROKEN) as error:
        raise unreadable(path, error) from error


def _parse(path: Path, content: bytes) -> Gdf:
    if content[:4] != b"GDF ":
        raise DataError(f"{path} is no .gdf file: it begins with {content[:4]!r}; fetch it again")
    version = float(content[4:8])
    later = version >= 1.9
    length = int(_numbers(content, 184, "<u2")[0]) * FIXED if later else int(_numbers(content, 184, "<i8")[0])
    records = int(_numbers(content, 236, "<i8")[0])
    seconds, parts = _numbers(content, 244, "<u4", 2)
    channels = int(_numbers(content, 252, "<u2" if later else "<u4")[0])
    # Where a field of all channels begins is the sum of the widths of those before it, times the channels.
    at = FIXED + 104 * channels
    low, high = (_numbers(content, at + 8 * field * channels, "<f8", channels) for field in (0, 1))
    digital = "<f8" if later else "<i8"
    least, most = (_numbers(content, at + 8 * field * channels, digital, channels) for field in (2, 3))
    sizes = _numbers(content, FIXED + 216 * channels, "<u4", channels)
    types = _numbers(content, FIXED + 220 * channels, "<u4", channels)
    if not channels or len(set(sizes)) > 1 or len(set(types)) > 1 or int(types[0]) not in TYPES or not seconds:
        raise DataError(f"{path}: its channels differ in rate or type, or have none that is known here")
    kind, size = np.dtype(TYPES[int(types[0])]), int(sizes[0])
    raw = _numbers(content, length, kind.str, records * channels * size).reshape(records, channels, size)
    values = raw.transpose(0, 2, 1).reshape(-1, channels).astype(float)
    gain = (high - low) / (most - least).astype(float)
    places, kinds = _events(content, length + raw.nbytes, version)
    return Gdf((values - least) * gain + low, size * int(parts) / int(seconds), places, kinds)


def _events(content: bytes, at: int, version: float) -> tuple[np.ndarray, np.ndarray]:
    """The table of events after the signals; a file may have none."""
    if at >= len(content):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    three = _numbers(content, at + 1, "u1", 3).astype(np.int64) @ (1 << np.array([0, 8, 16]))
    count = int(three) if version >= 1.94 else int(_numbers(content, at + 4, "<u4")[0])
    places = _numbers(content, at + 8, "<u4", count).astype(np.int64) - 1
    return places, _numbers(content, at + 8 + 4 * count, "<u2", count).astype(np.int64)


def _numbers(content: bytes, at: int, kind: str, count: int = 1) -> np.ndarray:
    """Numbers from a place on; a `ValueError` if the file ends before them."""
    return np.frombuffer(content, kind, count, at)
