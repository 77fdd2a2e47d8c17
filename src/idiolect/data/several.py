"""Clients whose inputs are several, or sequences of different length: found, and laid side by side in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ..core.errors import DataError
from ..core.layout import InputLayout, find_layout, is_nested, is_ragged, join_layouts
from .lazy.datasets import own_randomness, sample_seed, seed_all

PEEKED = 3
"""So many samples of a dataset, its first ones, show whether its inputs are one tensor of one shape."""


def lay_out(
    clients: Sequence[tuple[str, Any]], known: InputLayout | None = None
) -> tuple[list[tuple[str, Any]], InputLayout | None]:
    """Clients with one tensor of inputs each, and how these lie in it; without a layout where they are arrays already.
    A client is a pair (x, y), a dataset or a mapping of splits; a `known` layout is that of other clients."""
    clients = [(name, _change(data, lambda pair, _: _gather(pair), name)) for name, data in clients]
    pairs = [(owner, pair) for name, data in clients for owner, pair in _pairs(data, f"client {name!r}")]
    if known is None and not any(is_nested(x, _length(y)) for _, (x, y) in pairs):
        return list(clients), None
    layouts = [(owner, _named(owner, x)) for owner, (x, _) in pairs]
    layouts = layouts if known is None else [("the others", known), *layouts]
    first, layout = layouts[0]
    for owner, other in layouts[1:]:
        layout = join_layouts(layout, other, (first, owner))
    packed = [
        (name, _change(data, lambda pair, owner: (layout.pack(pair[0], owner), pair[1]), f"client {name!r}"))
        for name, data in clients
    ]
    return packed, layout


def _named(owner: str, x: Any) -> InputLayout:
    try:
        return find_layout(x)
    except DataError as error:
        raise DataError(f"{owner}: {error}") from error


def _change(data: Any, change: Any, owner: str) -> Any:
    """A client with its pairs, or datasets, changed."""
    if isinstance(data, Mapping):
        return {which: _change(part, change, f"{owner}, {which}") for which, part in data.items()}
    return change(data, owner) if isinstance(data, Dataset) or _is_pair(data) else data


def _pairs(data: Any, owner: str) -> list[tuple[str, Any]]:
    parts = data.items() if isinstance(data, Mapping) else [("", data)]
    return [(f"{owner}{which and f', {which}'}", part) for which, part in parts if _is_pair(part)]


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2


def _length(y: Any) -> int | None:
    return len(y) if hasattr(y, "__len__") else None


def _gather(data: Any) -> Any:
    """A dataset whose samples have several inputs, or sequences of different length, as (x, y); all else as it is."""
    if not isinstance(data, Dataset) or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        return data
    if isinstance(data, TensorDataset):
        *inputs, y = data.tensors
        return (tuple(inputs), y) if len(inputs) > 1 else data
    try:
        shown = _read(data, range(min(PEEKED, len(data))))
        if not shown or not all(_is_pair(sample) for sample in shown):
            return data
        xs = [sample[0] for sample in shown]
        several = isinstance(xs[0], Mapping | tuple)
        if not several and not is_ragged([torch.as_tensor(x) for x in xs]):
            return data
    except (TypeError, ValueError, RuntimeError):
        return data
    samples = _read(data, range(len(data)))
    return _stack([sample[0] for sample in samples]), torch.stack([torch.as_tensor(sample[1]) for sample in samples])


def _read(dataset: Any, numbers: range) -> list[Any]:
    """Some samples; what is random in them is the same each time, and moves no generator."""
    samples = []
    with own_randomness():
        for number in numbers:
            seed_all(sample_seed(None, "dataset", number))
            samples.append(dataset[number])
    return samples


def _stack(xs: Sequence[Any]) -> Any:
    """The inputs of samples as inputs of a batch."""
    if isinstance(xs[0], Mapping):
        return {name: _stack([x[name] for x in xs]) for name in xs[0]}
    if isinstance(xs[0], tuple):
        return tuple(_stack(parts) for parts in zip(*xs, strict=True))
    tensors = [torch.as_tensor(x) for x in xs]
    return tensors if is_ragged(tensors) else torch.stack(tensors)
