"""Several inputs, and sequences of different length, as one row of numbers per sample, and back: whatever is drawn,
stacked, sent between processes and hashed is one tensor, and only the network sees the inputs apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import DataError

EXACT = 2**24
"""Whole numbers up to here are exact as float32, in which all inputs lie that are not all whole."""
DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Leaf:
    """One input of a sample: its shape and type. A sequence has the shape of the longest one and, in front of it, its
    own length."""

    shape: tuple[int, ...]
    dtype: str
    sequence: bool = False

    @property
    def size(self) -> int:
        """How many numbers of a row it takes."""
        return math.prod(self.shape) + self.sequence


class Padded(NamedTuple):
    """A batch of sequences, filled up with zeros to one length, and the length that each had."""

    values: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True where a sequence has a value, False where it was filled up."""
        return torch.arange(self.values.shape[1], device=self.values.device) < self.lengths[:, None]


Structure = Any
"""A `Leaf`, a dict of structures by name, or a tuple of them."""
Nested = Any
"""A batch of inputs: of the same form, with a tensor, a `Padded` or, before they are filled up, a list of tensors at
each leaf."""


@dataclass(frozen=True)
class InputLayout:
    """How the inputs of a sample lie side by side in a row.

    >>> layout = find_layout({"image": torch.ones(2, 1, 2, 2), "age": torch.tensor([40, 50])})
    >>> rows = layout.pack({"image": torch.ones(2, 1, 2, 2), "age": torch.tensor([40, 50])})
    >>> rows.shape, layout.unpack(rows)["age"]
    (torch.Size([2, 5]), tensor([40, 50]))
    """

    structure: Structure

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """All inputs in the order in which they lie."""
        return tuple(leaf for _, leaf in walk(self.structure))

    @property
    def dtype(self) -> torch.dtype:
        """The type of a row: whole numbers where all inputs are."""
        return torch.float32 if any(leaf.dtype == "float32" for leaf in self.leaves) else torch.int64

    @property
    def shapes(self) -> Any:
        """The shape of each input, in the same form; a sequence's is that of the longest."""
        return rebuild(self.structure, iter([leaf.shape for leaf in self.leaves]))

    def __str__(self) -> str:
        parts = []
        for path, leaf in walk(self.structure):
            shape = [f"up to {leaf.shape[0]}", *leaf.shape[1:]] if leaf.sequence else list(leaf.shape)
            parts.append(f"{path or 'sequence'} [{', '.join(map(str, shape))}] {leaf.dtype}")
        return ", ".join(parts)

    def pack(self, nested: Nested, owner: str = "the inputs") -> Tensor:
        """Inputs as rows; a `DataError` where they are others than those of the layout."""
        found = dict(walk(read_nested(nested, owner)))
        wanted = dict(walk(self.structure))
        if found.keys() != wanted.keys():
            names = [", ".join(path or "one input" for path in paths) for paths in (found, wanted)]
            raise DataError(f"{owner}: the inputs are {names[0]}, but must be {names[1]}")
        rows = [_pack_leaf(found[path], leaf, f"{owner}{path and f', {path}'}") for path, leaf in wanted.items()]
        if len({len(row) for row in rows}) > 1:
            raise DataError(
                f"{owner}: its inputs have {', '.join(str(len(row)) for row in rows)} samples; give as many of each"
            )
        if self.dtype.is_floating_point:
            for path, row in zip(wanted, rows, strict=True):
                if row.dtype == torch.int64 and row.numel() and int(row.abs().max()) > EXACT:
                    raise DataError(
                        f"{owner}: the input {path} has whole numbers beyond {EXACT:,}, which are not exact beside"
                        " floating-point inputs; number them from 0 on"
                    )
        return torch.cat([row.to(self.dtype) for row in rows], 1)

    def unpack(self, rows: Tensor) -> Nested:
        """Rows as inputs: a tensor or, of sequences, a `Padded`."""
        return rebuild(self.structure, iter([_unpack_leaf(part, leaf) for part, leaf in self._split(rows)]))

    def whole_numbers(self, rows: Tensor) -> list[Tensor]:
        """The inputs that are whole numbers."""
        return [part[:, int(leaf.sequence) :].long() for part, leaf in self._split(rows) if leaf.dtype == "int64"]

    def tokens(self, rows: Tensor) -> list[Tensor]:
        """The sequences of whole numbers, filled up with zeros."""
        return [part[:, 1:].long() for part, leaf in self._split(rows) if leaf.sequence and leaf.dtype == "int64"]

    def change_tokens(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows with their sequences of whole numbers changed; what fills up must stay zero."""
        parts = [
            torch.cat([part[:, :1], change(part[:, 1:].long()).to(part.dtype)], 1)
            if leaf.sequence and leaf.dtype == "int64"
            else part
            for part, leaf in self._split(rows)
        ]
        return torch.cat(parts, 1)

    def _split(self, rows: Tensor) -> list[tuple[Tensor, Leaf]]:
        return list(zip(torch.split(rows, [leaf.size for leaf in self.leaves], 1), self.leaves, strict=True))

    def as_plain(self) -> Any:
        """Plain values, as JSON has them."""
        return _to_plain(self.structure)


def read_layout(plain: Any) -> InputLayout:
    """The layout that plain values describe, or a `ValueError`.

    >>> layout = find_layout((torch.ones(2, 3), [torch.ones(1), torch.ones(2)]))
    >>> read_layout(layout.as_plain()) == layout
    True
    """
    return InputLayout(_from_plain(plain, 0))


def find_layout(nested: Nested) -> InputLayout:
    """The layout of some inputs."""
    return InputLayout(_structure_of(read_nested(nested, "the inputs")))


def join_layouts(first: InputLayout, other: InputLayout, owners: Sequence[str]) -> InputLayout:
    """A layout for the inputs of both, which may differ in how long sequences are."""
    mine, its = dict(walk(first.structure)), dict(walk(other.structure))
    if list(mine) != list(its):
        raise DataError(f"{owners[1]} has the inputs {other}, but {owners[0]} has {first}; all clients must agree")
    joined = []
    for path, leaf in mine.items():
        sequence = leaf.sequence or its[path].sequence
        shapes = [known.shape[1:] if sequence else known.shape for known in (leaf, its[path])]
        if (
            shapes[0] != shapes[1]
            or leaf.dtype != its[path].dtype
            or (sequence and not (leaf.shape and its[path].shape))
        ):
            raise DataError(f"{owners[1]} has the inputs {other}, but {owners[0]} has {first}; all clients must agree")
        longest = (max(leaf.shape[0], its[path].shape[0]), *shapes[0]) if sequence else leaf.shape
        joined.append(replace(leaf, shape=longest, sequence=sequence))
    return InputLayout(rebuild(first.structure, iter(joined)))


def is_nested(values: Any, samples: int | None = None) -> bool:
    """Whether inputs are several, or sequences of different length, rather than an array: a mapping, a tuple of arrays
    with a row per sample, or a list of arrays that differ in length.

    >>> is_nested({"a": [1]}), is_nested((torch.ones(2), torch.ones(2))), is_nested([[1], [1, 2]])
    (True, True, True)
    >>> is_nested([[1.0], [1.0, 2.0]])
    False
    """
    if isinstance(values, Mapping | Padded):
        return True
    if isinstance(values, tuple):
        arrays = bool(values) and all(hasattr(value, "shape") or is_nested(value) for value in values)
        return arrays and (samples is None or all(_count(value) == samples for value in values))
    return is_ragged(values)


def is_ragged(values: Any) -> bool:
    """Whether a list holds sequences of different length: arrays, or lists of whole numbers, which are tokens. Lists of
    other numbers are rows, which should not differ."""
    if not isinstance(values, list) or not values or not all(hasattr(value, "__len__") for value in values):
        return hasattr(values, "dtype") and values.dtype == object and is_ragged(list(values))
    if not all(hasattr(value, "shape") or all(type(part) is int for part in value) for value in values):
        return False
    return len({len(value) if not hasattr(value, "shape") or value.shape else -1 for value in values}) > 1


def read_nested(values: Any, owner: str) -> Nested:
    """Inputs with tensors, and lists of tensors, as leaves; numbers become float32 or int64, booleans stay."""
    if isinstance(values, Padded):
        return [row[: int(length)] for row, length in zip(values.values, values.lengths, strict=True)]
    if isinstance(values, Mapping):
        if not values:
            raise DataError(f"{owner}: there are no inputs; give at least one")
        return {str(name): read_nested(value, f"{owner}, {name}") for name, value in values.items()}
    if isinstance(values, tuple) and is_nested(values):
        return tuple(read_nested(value, f"{owner}, {place}") for place, value in enumerate(values))
    if is_ragged(values):
        return [_read_tensor(value, owner) for value in values]
    return _read_tensor(values, owner)


def walk(nested: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves with their paths, such as `text.tokens`, in order."""
    if isinstance(nested, dict) or (isinstance(nested, tuple) and not isinstance(nested, Padded)):
        for name, value in nested.items() if isinstance(nested, dict) else enumerate(nested):
            yield from walk(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, nested


def rebuild(structure: Any, leaves: Iterator[Any]) -> Any:
    """The same form with other leaves."""
    if isinstance(structure, dict):
        return {name: rebuild(part, leaves) for name, part in structure.items()}
    return tuple(rebuild(part, leaves) for part in structure) if isinstance(structure, tuple) else next(leaves)


def _count(value: Any) -> int:
    first = next(walk(value))[1] if isinstance(value, dict | tuple) else value
    return len(first) if hasattr(first, "__len__") and getattr(first, "shape", True) else -1


def _read_tensor(values: Any, owner: str) -> Tensor:
    try:
        if isinstance(values, list) and values and all(isinstance(value, Tensor) for value in values):
            values = torch.stack(values)
        tensor = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{owner}: these inputs are no numbers of one shape ({str(error).splitlines()[0]})") from error
    if tensor.ndim == 0 or tensor.is_complex():
        raise DataError(f"{owner}: the inputs are a single value or complex; give one row of real numbers per sample")
    if tensor.dtype == torch.bool:
        return tensor
    return tensor.float() if tensor.is_floating_point() or tensor.dtype == torch.uint8 else tensor.long()


def _structure_of(nested: Nested) -> Structure:
    leaves = []
    for path, value in walk(nested):
        if isinstance(value, Tensor):
            leaves.append(Leaf(tuple(value.shape[1:]), str(value.dtype).removeprefix("torch.")))
            continue
        shapes, dtypes = (
            {tuple(row.shape[1:]) for row in value},
            {str(row.dtype).removeprefix("torch.") for row in value},
        )
        if len(shapes) > 1 or len(dtypes) > 1:
            steps = " and ".join(str(list(shape)) for shape in sorted(shapes))
            what = f"steps of shape {steps}, of {' and '.join(sorted(dtypes))}"
            raise DataError(
                f"the sequences{path and f' of {path}'} differ in more than their length: {what}; bring them to one"
            )
        if not min(map(len, value)):
            raise DataError(f"the sequences{path and f' of {path}'} hold an empty one; leave its sample out")
        leaves.append(Leaf((max(map(len, value)), *shapes.pop()), dtypes.pop(), sequence=True))
    return rebuild(nested, iter(leaves))


def _pack_leaf(value: Any, leaf: Leaf, owner: str) -> Tensor:
    """The part of the rows that holds one input."""
    samples, sequences = len(value), list(value)
    fits = tuple(value.shape[1:]) == leaf.shape if isinstance(value, Tensor) and not leaf.sequence else leaf.sequence
    if not fits or any(leaf.sequence and tuple(row.shape[1:]) != leaf.shape[1:] for row in sequences):
        shape = list(value.shape[1:]) if isinstance(value, Tensor) else "different ones"
        raise DataError(f"{owner}: a sample has the shape {shape}, but must have {list(leaf.shape)}")
    if not leaf.sequence:
        return torch.as_tensor(value).reshape(samples, leaf.size)
    if not samples:
        return torch.zeros(0, leaf.size, dtype=DTYPES[leaf.dtype])
    lengths = [len(row) for row in sequences]
    if not 0 < min(lengths) <= max(lengths) <= leaf.shape[0]:
        raise DataError(
            f"{owner}: a sequence has the length {max(lengths) if min(lengths) else 0}, but may have 1 to"
            f" {leaf.shape[0]}"
        )
    filled = torch.zeros(samples, leaf.shape[0], *leaf.shape[1:], dtype=DTYPES[leaf.dtype])
    for at, row in enumerate(sequences):
        filled[at, : len(row)] = row
    kind = torch.float32 if filled.is_floating_point() else torch.int64
    return torch.cat([torch.tensor(lengths)[:, None].to(kind), filled.reshape(samples, -1).to(kind)], 1)


def _unpack_leaf(part: Tensor, leaf: Leaf) -> Any:
    kind = DTYPES[leaf.dtype]
    if not leaf.sequence:
        return part.reshape(len(part), *leaf.shape).to(kind)
    return Padded(part[:, 1:].reshape(len(part), *leaf.shape).to(kind), part[:, 0].long())


def _to_plain(structure: Structure) -> Any:
    if isinstance(structure, dict):
        return {"dict": [[name, _to_plain(part)] for name, part in structure.items()]}
    if isinstance(structure, tuple):
        return {"tuple": [_to_plain(part) for part in structure]}
    return {"leaf": [list(structure.shape), structure.dtype, structure.sequence]}


def _from_plain(plain: Any, depth: int) -> Structure:
    if not isinstance(plain, dict) or len(plain) != 1 or depth > 8:
        raise ValueError("a layout of inputs is impossible")
    ((kind, value),) = plain.items()
    if kind == "dict":
        names = [name for name, _ in value]
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError("a layout of inputs has impossible names")
        return {name: _from_plain(part, depth + 1) for name, part in value}
    if kind == "tuple" and value:
        return tuple(_from_plain(part, depth + 1) for part in value)
    shape, dtype, sequence = value
    sizes = all(type(size) is int and 0 < size < 2**31 for size in shape)
    if kind != "leaf" or dtype not in DTYPES or type(sequence) is not bool or not sizes or (sequence and not shape):
        raise ValueError("an input is impossible")
    return Leaf(tuple(shape), dtype, sequence)
