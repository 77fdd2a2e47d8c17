"""Arrays in .npz, .mat and HDF5 files, checked: no pickled objects, every array there and as long as it should be."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DataError
from .files import BROKEN, check_size, most_unpacked, unreadable
from .images import Packed


def read_npz(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Some arrays of an .npz file, and optional ones where they are there.

    >>> path = getfixture("tmp_path") / "a.npz"
    >>> np.savez(path, x=np.zeros(3))
    >>> read_npz(path, ["x"])["x"].shape
    (3,)
    """
    try:
        check_unpacked(path)
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path} holds a single array, not an archive of arrays; write it with numpy.savez")
        with archive:
            _need(path, keys, archive)
            return {key: archive[key] for key in keys} | {key: archive[key] for key in optional if key in archive}
    except (zipfile.BadZipFile, KeyError, MemoryError, *BROKEN) as error:
        raise unreadable(path, error) from error


def check_unpacked(path: Path) -> None:
    """Raise `DataError` if a zip archive, which an .npz file is, says that it unpacks to too much."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as opened:
            check_size(path, sum(member.file_size for member in opened.infolist()))


def read_mat(path: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Some arrays of a MATLAB file (version 7.2 or older)."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    try:
        check_size(path, count_unpacked(path))
        content: dict[str, Any] = loadmat(path, variable_names=list(keys))
        if any(key not in content for key in keys):
            content = dict.fromkeys(name for name, _, _ in whosmat(path))
    except (MatReadError, NotImplementedError, TypeError, LookupError, MemoryError, *BROKEN) as error:
        raise unreadable(path, error) from error
    _need(path, keys, content)
    return {key: content[key] for key in keys}


HEAD, TAG, PACKED, CHUNK = 128, 8, 15, 1 << 20
"""Of a MATLAB file: bytes before its first variable and of what says a variable's kind and length, the kind that is
compressed; and the bytes that are unpacked at a time."""


def count_unpacked(path: Path) -> int:
    """How many bytes the compressed variables of a MATLAB file hold, as far as it may be (see `check_size`); none of
    them is kept."""
    most, total = most_unpacked(path), 0
    with path.open("rb") as file:
        head = file.read(HEAD)
        if 0 in head[:4]:  # version 4, in which nothing is compressed
            return 0
        order = "<" if head.endswith(b"IM") else ">"
        while total <= most and len(tag := file.read(TAG)) == TAG:
            kind, length = struct.unpack(f"{order}II", tag)
            if kind != PACKED:
                file.seek(length, 1)
                continue
            unpacker, left = zlib.decompressobj(), length
            while left and total <= most and (part := file.read(min(left, CHUNK))):
                left -= len(part)
                while part and total <= most:
                    total += len(unpacker.decompress(part, CHUNK))
                    part = unpacker.unconsumed_tail
    return total


def read_hdf5(path: Path, keys: Sequence[str]) -> list[np.ndarray]:
    """Some arrays of an HDF5 file, by their paths in it, such as `train/data`."""
    import h5py

    try:
        with h5py.File(path, "r") as content:
            found = [content[key] for key in keys]
            for key, array in zip(keys, found, strict=True):
                if not isinstance(array, h5py.Dataset) or array.dtype.kind not in "iuf":
                    raise DataError(f"{path}: {key} is no array of numbers; it is another file than expected")
            check_size(path, sum(array.nbytes for array in found))
            return [array[()] for array in found]
    except (KeyError, MemoryError, *BROKEN) as error:
        raise unreadable(path, error) from error


def packed_images(path: Path, prefix: str, images: str = "img", mode: str = "RGB") -> tuple[Packed, np.ndarray]:
    """The encoded images of an .npz file whose keys begin with `prefix`, and their labels."""
    data, offset, label = (f"{prefix}{key}" for key in (images, "offset", "label"))
    arrays = read_npz(path, [data, offset, label])
    check_offsets(path, arrays[data], arrays[offset])
    check_rank(path, label, arrays[label], 1)
    if len(arrays[label]) != len(arrays[offset]) - 1:
        raise DataError(
            f"{path}: {len(arrays[offset]) - 1} images but {len(arrays[label])} labels under {prefix or 'its keys'};"
            " fetch it again"
        )
    return Packed(arrays[data], arrays[offset].astype(np.int64), f"{path}, {prefix or data}", mode), arrays[label]


def check_offsets(path: Path, data: np.ndarray, offset: np.ndarray) -> None:
    """Raise `DataError` unless offsets rise from 0 to the end of the data."""
    check_rank(path, "the images", data, 1, "u")
    check_rank(path, "the offsets", offset, 1, "iu")
    plain = offset.astype(np.int64)
    if len(plain) < 1 or plain[0] != 0 or plain[-1] != len(data) or bool((np.diff(plain) <= 0).any()):
        raise DataError(f"{path}: the offsets do not fit the {len(data)} bytes of images; fetch it again")


def check_rank(path: Path, what: str, array: np.ndarray, rank: int, kinds: str = "iuf") -> None:
    """Raise `DataError` unless an array has so many dimensions and holds numbers of these kinds."""
    if array.ndim != rank or array.dtype.kind not in kinds:
        raise DataError(
            f"{path}: {what} must be numbers in {rank} dimensions, but have the shape {list(array.shape)} and the type "
            f"{array.dtype}; it is another file than its name says, or damaged: fetch it again"
        )


def name_groups(path: Path, names: np.ndarray, index: np.ndarray, count: int) -> np.ndarray:
    """The name of each of `count` samples, given the names and their numbers.

    >>> name_groups(Path("a.npz"), np.array(["north", "south"]), np.array([1, 0, 1]), 3).tolist()
    ['south', 'north', 'south']
    """
    check_rank(path, "the numbers of the sites", index, 1, "iu")
    if names.ndim != 1 or len(index) != count or not np.isin(index, np.arange(len(names))).all():
        raise DataError(f"{path} does not name a site for each of its {count} samples; fetch it again")
    chosen: np.ndarray = names[index]
    return chosen


def check_labels(path: object, labels: np.ndarray, classes: int, start: int = 0) -> np.ndarray:
    """Labels as numbers from 0 on, or a `DataError` where one is out of range."""
    if labels.dtype.kind not in "iuf" or not np.array_equal(labels, np.round(labels)):
        raise DataError(f"{path} has labels that are no whole numbers; it is another file than its name says")
    plain = labels.astype(np.int64).reshape(-1)
    wrong = plain[(plain < start) | (plain >= start + classes)]
    if len(wrong):
        raise DataError(
            f"{path} has the label {wrong[0]}, but labels go from {start} to {start + classes - 1}; it is another file"
            " than its name says, or damaged: fetch it again"
        )
    return plain - start


def _need(path: Path, keys: Sequence[str], content: Mapping[str, Any]) -> None:
    lacking = [key for key in keys if key not in content]
    if lacking:
        there = ", ".join(key for key in content if not key.startswith("__")) or "nothing"
        raise DataError(f"{path} has no {', '.join(lacking)}; it holds {there}. It is another file than expected")
