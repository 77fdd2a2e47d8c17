"""A plan for other machines: pickled by the driver for its own actors, with the large arrays of its data beside it, so
that they are copied once per node. Code that was loaded from the user's files travels along; arrays in files do not,
and modules that a program has imported are looked for where the driver looks for them."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.code import loaded_modules
from ...core.errors import ClusterError

_LARGE = 1 << 16
"""Bytes from which on a tensor travels beside the rest."""

Shipped = tuple[bytes, list[np.ndarray], list[str]]


def ship(thing: Any) -> Shipped:
    """Something as bytes and arrays, for `unship` in a process of this cluster."""
    cloudpickle: Any = import_module("ray.cloudpickle")
    arrays: list[np.ndarray] = []

    def reduce(pickler: Any, obj: Any) -> Any:
        """Large tensors go out of the stream."""
        if type(obj) is Tensor and is_plain(obj):
            buffer: Any = obj.numpy()
            return _rebuild, (pickle.PickleBuffer(buffer), obj.dtype, tuple(obj.shape))
        if isinstance(obj, np.memmap) and is_whole(obj):
            order = "C" if obj.flags.c_contiguous else "F"
            return _map_again, (str(Path(str(obj.filename)).absolute()), obj.dtype, obj.offset, obj.shape, order)
        return cloudpickle.CloudPickler.reducer_override(pickler, obj)

    kind: Any = type("Pickler", (cloudpickle.CloudPickler,), {"reducer_override": reduce})
    stream = io.BytesIO()
    with _by_value(cloudpickle):
        keep = lambda part: arrays.append(np.frombuffer(part.raw(), np.uint8))  # noqa: E731
        kind(stream, protocol=5, buffer_callback=keep).dump(thing)
    return stream.getvalue(), arrays, [os.path.abspath(place) for place in sys.path]


def unship(shipped: Shipped) -> Any:
    """What was shipped, in memory of its own, which user code may not share with other processes."""
    data, arrays, places = shipped
    sys.path += [place for place in places if place not in sys.path and os.path.isdir(place)]
    try:
        return pickle.loads(data, buffers=[array.copy() for array in arrays])
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"the module {error.name} is not there; have it at the same place on every node, or install it on all, or"
            " name what is in it as a file, file.py:Name, which travels along"
        ) from error


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but numbers in a row, and enough of them."""
    plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.requires_grad
    return plain and tensor.layout == torch.strided and tensor.nbytes >= _LARGE and tensor.dtype in _NUMPY


def is_whole(array: Any) -> bool:
    """Whether a memory-mapped array is what was opened, and not a part of it: then its file says all of it, which may
    be too much for the memory."""
    opened = isinstance(array.base, mmap.mmap) and array.filename is not None and array.mode != "c"
    return opened and bool(array.flags.c_contiguous or array.flags.f_contiguous)


_NUMPY = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _rebuild(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def _map_again(path: str, dtype: Any, offset: int, shape: tuple[int, ...], order: Any) -> Any:
    """The same array out of the file that is here; an error where there is none, or a shorter one."""
    try:
        return np.memmap(path, dtype, "r", offset, shape, order)
    except ValueError as error:  # numpy says so of a file that is too short
        raise OSError(f"{path} is another file than the driver's: {error}") from error


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """Let pickle send the code of files that the user named, which no other process can import."""
    modules = loaded_modules()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
