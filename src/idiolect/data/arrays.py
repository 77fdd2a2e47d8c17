"""Whatever holds data (tensors, arrays, lists, PyTorch datasets) -> a tensor of inputs and one of targets.
Values are never rescaled here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ..core.errors import DataError
from ..core.once import say_once
from . import samples
from .lazy.arrays import ArraySamples
from .lazy.datasets import generator_states, open_dataset, own_randomness, seed_all
from .samples import Inputs, Samples

LARGEST = 2**63 - 1
"""The largest whole number of a tensor."""


def inputs(values: Any, owner: str) -> Inputs:
    """Inputs as float32, or as int64 where they are tokens (whole numbers other than bytes). What is memory-mapped, and
    many bytes, stay what they are.

    >>> inputs([[1.0, 2.0]], "client 'a'").dtype, inputs(np.array([[3, 4]]), "client 'a'").dtype
    (torch.float32, torch.int64)
    """
    x = values if isinstance(values, Samples) else _keep(values) or _tensor(values, "inputs", owner)
    if x.ndim < 2:
        raise DataError(
            f"{owner}: the inputs have the shape {list(x.shape)}, but need one row per sample;"
            " give a single feature as x[:, None]"
        )
    if isinstance(x, Samples):
        return x
    return x.float() if x.is_floating_point() or x.dtype in (torch.uint8, torch.bool) else x.long()


def targets(values: Any, owner: str, classes: int | None = None) -> Tensor:
    """Labels as int64, numbers to predict as float32; with `classes`, the targets must be labels.

    >>> targets([0, 1], "client 'a'").dtype, targets([0.5, 1.5], "client 'a'").dtype
    (torch.int64, torch.float32)
    """
    y = _tensor(values, "targets", owner)
    if y.is_floating_point() and classes is None:
        return y.float()
    if y.is_floating_point() and not bool((y == y.round()).all()):
        example = y[y != y.round()].flatten()[0].item()
        raise DataError(
            f"{owner}: {example:g} is no label; labels are whole numbers from 0 to {classes - 1 if classes else 'K-1'}."
            " Leave out `classes` to predict numbers instead"
        )
    if y.ndim > 1 and y.shape[1:].numel() == 1:
        raise DataError(f"{owner}: the labels have the shape {list(y.shape)}; give them as y.reshape(-1)")
    return y.long()


def pair(data: Any, owner: str, classes: int | None = None) -> tuple[Inputs, Tensor]:
    """Inputs and targets from a tuple (x, y) or a PyTorch dataset of such pairs.

    >>> x, y = pair(([[0.0], [1.0]], [0, 1]), "client 'a'")
    >>> x.shape, y.shape
    (torch.Size([2, 1]), torch.Size([2]))
    """
    if isinstance(data, Dataset):
        data = _gather(data, owner)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError(
            f"{owner} is a {type(data).__name__}; give a tuple (x, y), a PyTorch dataset of such pairs,"
            " or a mapping with train and, if you like, val and test"
        )
    x, y = inputs(data[0], owner), targets(data[1], owner, classes)
    if len(x) != len(y):
        raise DataError(f"{owner}: {len(x)} inputs but {len(y)} targets; there must be one target per input")
    return x, y


def classes_of(y: Tensor, owner: str) -> int | None:
    """One more than the largest label; None where the targets are numbers to predict."""
    if not y.numel():
        raise DataError(f"{owner} is empty; give at least one sample")
    return None if y.is_floating_point() else int(y.max()) + 1


def vocabulary_of(inputs: Iterable[Inputs]) -> int:
    """One more than the largest token; 0 where the inputs are numbers.

    >>> vocabulary_of([torch.tensor([[0, 7]]), torch.tensor([[3, 3]])])
    8
    """
    different = {id(body): body for body in inputs if not body.is_floating_point() and len(body)}.values()
    return max((1 + (b.largest() if isinstance(b, Samples) else int(b.max())) for b in different), default=0)


def _keep(values: Any) -> ArraySamples | None:
    """Arrays that are converted batch by batch: memory-mapped ones, and many bytes."""
    if isinstance(values, np.memmap) and values.dtype.kind in "biuf" and values.ndim > 1:
        return ArraySamples(values)
    small = isinstance(values, np.ndarray | Tensor) and str(values.dtype).removeprefix("torch.") in ("uint8", "bool")
    if small and 4 * _count(values) > samples.LARGE:
        return ArraySamples(values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(values))
    return None


def _count(values: np.ndarray | Tensor) -> int:
    return values.numel() if isinstance(values, Tensor) else values.size


def _tensor(values: Any, what: str, owner: str) -> Tensor:
    tensor = values.detach().cpu() if isinstance(values, Tensor) else _from_array(values, what, owner)
    if tensor.ndim == 0 or tensor.is_complex():
        raise DataError(f"{owner}: the {what} are a single value or complex; give one row of real numbers per sample")
    return tensor


def _from_array(values: Any, what: str, owner: str) -> Tensor:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{owner}: the {what} differ in shape among themselves; bring them to one shape") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{owner}: the {what} are of type {array.dtype}, not numbers; encode them as numbers first")
    if array.dtype == np.uint64 and array.size and array.max() > LARGEST:
        raise DataError(f"{owner}: the {what} hold {array.max()}, but whole numbers may be at most {LARGEST}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    # PyTorch takes no foreign byte order, and warns of memory that it must not write to.
    native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(native))


def read_stream(dataset: Iterable[Any], owner: str) -> list[Any]:
    """All that a stream gives, which is kept: it has no places that could be read when they are needed."""
    items: list[Any] = []
    size = 0
    with own_randomness():
        seed_all(0)
        before = generator_states()
        for item in dataset:
            items.append(item)
            size += (
                sum(part.nbytes for part in item if hasattr(part, "nbytes")) if isinstance(item, tuple | list) else 8
            )
            if size + 8 * len(items) > samples.LARGE:
                raise DataError(
                    f"{owner}: the stream {type(dataset).__name__} has no length, and after {len(items):,} samples, of"
                    f" more than {samples.LARGE >> 20} MB, it goes on; give a data set with __len__ and __getitem__,"
                    " which is read batch by batch, or let it end"
                )
        if before != generator_states():
            say_once(
                f"{owner}: the stream {type(dataset).__name__} draws random numbers, but is read once, so every epoch"
                " has the same; give a data set with __len__ and __getitem__, or transforms"
            )
    return items


def _gather(dataset: Dataset[Any], owner: str) -> tuple[Inputs, Tensor]:
    """All samples of a dataset, stacked, or to be read when they are needed."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if not isinstance(dataset, IterableDataset):
        if not hasattr(dataset, "__len__"):
            raise DataError(f"{owner}: the dataset {type(dataset).__name__} has no length; define __len__")
        return open_dataset(dataset, owner)
    items = read_stream(dataset, owner)
    if not items:
        raise DataError(f"{owner} is empty; leave it out or give it samples")
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise DataError(f"{owner}: the dataset must yield pairs (x, y), but yields {type(items[0]).__name__}")
    try:
        xs, ys = ([torch.as_tensor(item[place]) for item in items] for place in (0, 1))
        return torch.stack(xs), torch.stack(ys)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{owner}: the dataset's samples cannot be stacked ({error}); give it a transform to tensors of one shape"
        ) from error
