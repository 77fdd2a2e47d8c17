"""A bounded cache of rows in a file that processes share: in memory, or on disk, where the next run finds it."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import InputError
from ..samples import Samples

log = logging.getLogger("idiolect")

_CHECK = 4
"""Bytes of a row's checksum; zero where there is no row."""


class Cache:
    """A sparse file with a checksum and a place for each row. It is read and written by place, so processes that are
    forked share it without locks: a row that is half written fails its checksum. `path` keeps it for later runs."""

    def __init__(self, size: int, folder: Path | None = None, name: str = "") -> None:
        self.size, self.folder, self.name = size, folder, name
        self.usable = True
        self.asked: tuple[int, str | None] = (0, None)
        self._open()

    def _open(self) -> None:
        if self.folder is not None and self.name:
            self.file = os.open(self.folder / self.name, os.O_RDWR | os.O_CREAT, 0o600)
        elif self.folder is None and hasattr(os, "memfd_create"):
            self.file = os.memfd_create("idiolect samples")
        else:
            self.file, path = tempfile.mkstemp(dir=self.folder)
            os.unlink(path)
        os.ftruncate(self.file, self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self.size, self.folder, self.name)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)

    def store(self, checks: int, rows: int, check: int, row: np.ndarray) -> None:
        """Write a row and, after it, its checksum."""
        try:
            os.pwrite(self.file, row.data, rows)
            os.pwrite(self.file, check.to_bytes(_CHECK, "little"), checks)
        except OSError as error:
            self.usable = False
            log.warning("no more samples are cached: %s", error.strerror)


class Store:
    """The place of one body of samples in a cache: of its first `count` rows."""

    def __init__(self, cache: Cache, start: int, count: int, row_bytes: int) -> None:
        self.cache, self.start, self.count, self.row_bytes = cache, start, count, row_bytes

    def fill(self, numbers: Sequence[int], rows: np.ndarray) -> list[int]:
        """Put rows that are known into `rows`; which places are left."""
        return [place for place, number in enumerate(numbers) if not self._get(number, rows[place])]

    def _get(self, number: int, row: np.ndarray) -> bool:
        if number >= self.count:
            return False
        check = int.from_bytes(os.pread(self.cache.file, _CHECK, self.start + _CHECK * number), "little")
        if check == 0 or os.preadv(self.cache.file, [row.data], self._place(number)) != self.row_bytes:
            return False
        return _checksum(row) == check

    def put(self, number: int, row: np.ndarray) -> None:
        """Keep a row."""
        if number < self.count and self.cache.usable:
            self.cache.store(self.start + _CHECK * number, self._place(number), _checksum(row), row)

    def _place(self, number: int) -> int:
        return self.start + _CHECK * self.count + number * self.row_bytes


def _checksum(row: np.ndarray) -> int:
    return zlib.crc32(row.data) or 1


def attach_cache(samples: Iterable[Samples], megabytes: int, folder: str | None) -> None:
    """Give bodies of samples a common cache of so many megabytes, of which each gets the same share of its rows."""
    known = {id(part): part for body in samples for part in body.parts if part.raw is not None}
    if all(part.store and part.store.cache.asked == (megabytes, folder) for part in known.values()):
        return
    bodies, sizes = list(known.values()), [_row_bytes(part) for part in known.values()]
    wanted = sum(len(part) * (size + _CHECK) for part, size in zip(bodies, sizes, strict=True))
    if not wanted or not megabytes:
        for part in bodies:
            part.store = None
        return
    share = min(1.0, (megabytes << 20) / wanted)
    counts = [int(len(part) * share) for part in bodies]
    total = sum(count * (size + _CHECK) for count, size in zip(counts, sizes, strict=True))
    name = hashlib.sha256(repr([(part.key, n) for part, n in zip(bodies, counts, strict=True)]).encode()).hexdigest()
    place = None if folder is None else _make(Path(folder))
    cache, start = Cache(total, place, f"samples-{name[:24]}" if all(part.key for part in bodies) else ""), 0
    cache.asked = (megabytes, folder)
    for part, count, size in zip(bodies, counts, sizes, strict=True):
        part.store = Store(cache, start, count, size)
        start += count * (size + _CHECK)


def _row_bytes(samples: Samples) -> int:
    assert samples.raw is not None
    shape, dtype = samples.raw
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(
            f"sample_cache={str(folder)!r} cannot be written to ({error.strerror}); name a folder that can, or leave it"
            " out to cache in memory"
        ) from error
