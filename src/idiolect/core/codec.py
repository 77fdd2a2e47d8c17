"""Slots as bytes, for the wire and for the store: a JSON header and raw numbers, nothing that executes.
A leaf that is sent in part goes as a bit mask or as indices, whichever is smaller; booleans as bits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .tree import Slots

Buffer = bytes | memoryview
_MAGIC = b"IDL1"
_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


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


def decode(data: bytes) -> tuple[Slots, Slots]:
    """The inverse of `encode`: slots (zero where nothing was sent) and masks. Refuses anything malformed."""
    try:
        if data[:4] != _MAGIC:
            raise ValueError("it does not begin as one")
        length = int.from_bytes(data[4:12], "little")
        header = json.loads(data[12 : 12 + length])
        slots: Slots = {str(slot): {} for slot in header["slots"]}
        masks: Slots = {}
        at, view = 12 + length, memoryview(data)
        for slot, name, dtype, shape, form, count in header["leaves"]:
            if count < 0 or at + count > len(data):
                raise ValueError("it is cut short")
            leaf, mask = _read(view[at : at + count], _TYPES[dtype], tuple(map(int, shape)), form)
            slots[slot][name] = leaf
            if mask is not None:
                masks.setdefault(slot, {})[name] = mask
            at += count
        if at != len(data):
            raise ValueError("bytes are left over")
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError) as error:
        raise InputError(f"these {len(data)} bytes are not a message of slots: {error}") from error
    return slots, masks


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


def _read(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...], form: str) -> tuple[Tensor, Tensor | None]:
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count > 2**31 or (form != "index" and count > 8 * len(data)):
        raise ValueError("a leaf has an impossible shape")
    if form in ("dense", "full"):
        leaf = _values(data, dtype, count).reshape(shape)
        return leaf, torch.ones(shape, dtype=torch.bool) if form == "full" else None
    if form == "bits":
        cut = (count + 7) // 8
        flat = _values(data[:cut], torch.bool, count)
        rest = data[cut:]
    elif form == "index":
        sent = len(data) // (4 + dtype.itemsize)
        where = _values(data[: 4 * sent], torch.int32, sent).long()
        flat = torch.zeros(count, dtype=torch.bool)
        flat[where] = True
        rest = data[4 * sent :]
    else:
        raise ValueError(f"the form {form!r} is unknown")
    leaf = torch.zeros(count, dtype=dtype)
    leaf[flat] = _values(rest, dtype, int(flat.sum()))
    return leaf.reshape(shape), flat.reshape(shape)
