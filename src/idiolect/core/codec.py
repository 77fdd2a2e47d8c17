"""Slots as bytes, for the wire and for the store: a JSON header and raw numbers, nothing that executes.
A leaf that is sent in part goes as a bit mask or as indices, whichever is smaller; booleans as bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .tree import Slots

Buffer = bytes | memoryview
_MAGIC = b"IDL1"
_MOST_NUMBERS = 2**31
_FORMS = ("dense", "full", "bits", "index")
_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Leaf(NamedTuple):
    """What the header of a message says about a leaf: what it is, in which form it is written, and where."""

    slot: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    form: str
    start: int
    length: int

    @property
    def numel(self) -> int:
        """How many numbers the whole leaf has."""
        return math.prod(self.shape)

    @property
    def partial(self) -> bool:
        """Whether some of its numbers may not have been sent."""
        return self.form != "dense"

    def check(self) -> None:
        """Raise `ValueError` for a form that is unknown, or a shape that the leaf's bytes cannot have."""
        if self.form not in _FORMS or (self.form == "index" and self.dtype == torch.bool):
            raise ValueError(f"the form {self.form!r:.20} is unknown")
        whole = all(type(size) is int and size >= 0 for size in self.shape)
        most = _MOST_NUMBERS if self.form == "index" else 8 * self.length
        if not whole or self.numel > most:
            raise ValueError("a leaf has an impossible shape")


def encode(slots: Mapping[str, Mapping[str, Tensor]], masks: Mapping[str, Mapping[str, Tensor]] | None = None) -> bytes:
    """Slots, and the masks of those that are sent in part, as bytes.

    >>> data = encode({"params": {"w": torch.tensor([1.0, 2.0])}}, {"params": {"w": torch.tensor([True, False])}})
    >>> decode(data)
    ({'params': {'w': tensor([1., 0.])}}, {'params': {'w': tensor([ True, False])}})
    """
    header, parts = [], []
    for slot, leaves in slots.items():
        for name, leaf in leaves.items():
            mask = (masks or {}).get(slot, {}).get(name)
            form, _ = _form(leaf, mask)
            parts.append(_write(leaf, mask, form))
            header.append([slot, name, str(leaf.dtype).removeprefix("torch."), list(leaf.shape), form, len(parts[-1])])
    text = json.dumps({"leaves": header, "slots": list(slots)}, separators=(",", ":")).encode()
    return b"".join((_MAGIC, len(text).to_bytes(8, "little"), text, *parts))


def size(slots: Mapping[str, Mapping[str, Tensor]], masks: Mapping[str, Mapping[str, Tensor]] | None = None) -> int:
    """The payload of `encode` in bytes (everything but the header of names), without encoding.

    >>> size({"params": {"w": torch.zeros(10)}})
    40
    """
    total = 0
    for slot, leaves in slots.items():
        for name, leaf in leaves.items():
            mask = (masks or {}).get(slot, {}).get(name)
            total += _length(leaf, *_form(leaf, mask))
    return total


def payload(data: bytes) -> int:
    """How many bytes of an encoded message are payload."""
    return len(data) - 12 - int.from_bytes(data[4:12], "little")


def read_header(data: bytes) -> tuple[list[str], list[Leaf]]:
    """The slots and leaves that a message announces, without reading any of their numbers. Refuses anything malformed:
    so a receiver can compare shapes with what it expects before memory is taken for them.

    >>> read_header(encode({"params": {"w": torch.zeros(2)}}))[1][0].shape
    (2,)
    """
    with _refuse_malformed(data):
        if data[:4] != _MAGIC:
            raise ValueError("it does not begin as one")
        length = int.from_bytes(data[4:12], "little")
        header = json.loads(data[12 : 12 + length])
        names = header["slots"]
        if not isinstance(names, list) or not all(type(name) is str for name in names):
            raise ValueError("its slots have no names")
        leaves, start = [], 12 + length
        for slot, name, dtype, shape, form, count in header["leaves"]:
            if slot not in names or type(name) is not str:
                raise ValueError("a leaf belongs to no slot")
            if type(count) is not int or count < 0 or start + count > len(data):
                raise ValueError("it is cut short")
            leaves.append(Leaf(slot, name, _TYPES[dtype], tuple(shape), form, start, count))
            leaves[-1].check()
            start += count
        if start != len(data):
            raise ValueError("bytes are left over")
        if len({(leaf.slot, leaf.name) for leaf in leaves}) < len(leaves):
            raise ValueError("a leaf is there twice")
    return names, leaves


def decode(data: bytes) -> tuple[Slots, Slots]:
    """The inverse of `encode`: slots (zero where nothing was sent) and masks. Refuses anything malformed."""
    names, leaves = read_header(data)
    slots: Slots = {slot: {} for slot in names}
    masks: Slots = {}
    view = memoryview(data)
    with _refuse_malformed(data):
        for leaf in leaves:
            values, mask = _read(view[leaf.start : leaf.start + leaf.length], leaf)
            slots[leaf.slot][leaf.name] = values
            if mask is not None:
                masks.setdefault(leaf.slot, {})[leaf.name] = mask
    return slots, masks


@contextmanager
def _refuse_malformed(data: bytes) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError) as error:
        raise InputError(f"these {len(data)} bytes are not a message of slots: {error}") from error


def _form(leaf: Tensor, mask: Tensor | None) -> tuple[str, int]:
    """How a leaf is written, and how many of its numbers."""
    if mask is None:
        return "dense", leaf.numel()
    sent = int(torch.count_nonzero(mask))
    if sent == leaf.numel():
        return "full", sent
    return "bits" if leaf.dtype == torch.bool or (leaf.numel() + 7) // 8 <= 4 * sent else "index", sent


def _length(leaf: Tensor, form: str, sent: int) -> int:
    values = (sent + 7) // 8 if leaf.dtype == torch.bool else sent * leaf.element_size()
    return values + {"bits": (leaf.numel() + 7) // 8, "index": 4 * sent}.get(form, 0)


def _write(leaf: Tensor, mask: Tensor | None, form: str) -> Buffer:
    leaf = leaf.detach().cpu().contiguous()
    if form in ("dense", "full"):
        return _raw(leaf)
    assert mask is not None
    flat = mask.detach().cpu().reshape(-1)
    where = _raw(flat) if form == "bits" else _raw(flat.nonzero().reshape(-1).to(torch.int32))
    return b"".join((where, _raw(leaf.reshape(-1)[flat])))


def _raw(leaf: Tensor) -> Buffer:
    """The numbers of a leaf as they lie in memory, not copied; booleans as bits."""
    if leaf.dtype == torch.bool:
        return np.packbits(leaf.reshape(-1).numpy()).data
    return leaf.reshape(-1).view(torch.uint8).numpy().data if leaf.numel() else b""


def _values(data: memoryview, dtype: torch.dtype, count: int) -> Tensor:
    if dtype == torch.bool:
        if len(data) != (count + 7) // 8:
            raise ValueError("a leaf has the wrong length")
        return torch.from_numpy(np.unpackbits(np.frombuffer(data, np.uint8), count=count).astype(bool))
    if len(data) != count * dtype.itemsize:
        raise ValueError("a leaf has the wrong length")
    return torch.frombuffer(bytearray(data), dtype=dtype) if count else torch.zeros(0, dtype=dtype)


def _read(data: memoryview, leaf: Leaf) -> tuple[Tensor, Tensor | None]:
    total, dtype, shape = leaf.numel, leaf.dtype, leaf.shape
    if leaf.form in ("dense", "full"):
        values = _values(data, dtype, total).reshape(shape)
        return values, torch.ones(shape, dtype=torch.bool) if leaf.form == "full" else None
    if leaf.form == "bits":
        cut = (total + 7) // 8
        flat = _values(data[:cut], torch.bool, total)
    else:
        sent = len(data) // (4 + dtype.itemsize)
        cut = 4 * sent
        where = _values(data[:cut], torch.int32, sent).long()
        if sent and (int(where[0]) < 0 or int(where[-1]) >= total or bool((where[1:] <= where[:-1]).any())):
            raise ValueError("indices must grow and lie within the leaf")
        flat = torch.zeros(total, dtype=torch.bool)
        flat[where] = True
    values = torch.zeros(total, dtype=dtype)
    values[flat] = _values(data[cut:], dtype, int(flat.sum()))
    return values.reshape(shape), flat.reshape(shape)
