"""Slots as one flat buffer and a layout that says where in it each leaf lies: what processes share or send to each
other is one piece of memory, however many leaves there are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.tree import Slots

_ALIGN = 64


class Place(NamedTuple):
    """Where one leaf lies; of a slot, which may have no leaves, the offset is -1."""

    slot: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """How many numbers the leaf has."""
        return math.prod(self.shape)


Layout = tuple[Place, ...]


def lay_out(slots: Mapping[str, Mapping[str, Tensor]], start: int = 0) -> tuple[Layout, int]:
    """Places for all leaves one after another, and where the next one could begin."""
    places, end = [], start
    for slot, leaves in slots.items():
        places.append(Place(slot, "", torch.uint8, (), -1))
        for name, leaf in leaves.items():
            places.append(Place(slot, name, leaf.dtype, tuple(leaf.shape), end))
            end += -(-leaf.numel() * leaf.element_size() // _ALIGN) * _ALIGN
    return tuple(places), end


def write_leaves(buffer: Any, layout: Layout, slots: Mapping[str, Mapping[str, Tensor]], start: int = 0) -> None:
    """Copy leaves to their places in a buffer."""
    for place in layout:
        if place.offset >= 0 and place.numel:
            _leaf(buffer, place, start).copy_(slots[place.slot][place.name])


def read_leaves(buffer: Any, layout: Layout, start: int = 0) -> Slots:
    """The leaves in place, in the buffer's memory."""
    slots: Slots = {}
    for place in layout:
        if place.offset < 0:
            slots.setdefault(place.slot, {})
        else:
            slots[place.slot][place.name] = _leaf(buffer, place, start)
    return slots


def _leaf(buffer: Any, place: Place, start: int) -> Tensor:
    if place.numel == 0:
        return torch.zeros(place.shape, dtype=place.dtype)
    flat = torch.frombuffer(buffer, dtype=place.dtype, count=place.numel, offset=start + place.offset)
    return flat.reshape(place.shape)


class Packed(NamedTuple):
    """Several slots in one buffer: for each its layout and where it begins; None where there are none."""

    buffer: np.ndarray
    parts: tuple[tuple[Layout, int] | None, ...]


def pack(all_slots: Sequence[Mapping[str, Mapping[str, Tensor]] | None]) -> Packed:
    """Copy several slots into one buffer. Slots of one shape share one layout, which is then sent once.

    >>> packed = pack([{"params": {"w": torch.tensor([1.0, 2.0])}}, None, {}])
    >>> len(packed.buffer), unpack(packed)
    (64, [{'params': {'w': tensor([1., 2.])}}, None, {}])
    """
    known: dict[Layout, Layout] = {}
    parts: list[tuple[Layout, int] | None] = []
    end = 0
    for slots in all_slots:
        if slots is None:
            parts.append(None)
            continue
        layout, size = lay_out(slots)
        parts.append((known.setdefault(layout, layout), end))
        end += size
    buffer = np.empty(end, np.uint8)
    for slots, part in zip(all_slots, parts, strict=True):
        if slots is not None and part is not None:
            write_leaves(buffer, part[0], slots, part[1])
    return Packed(buffer, tuple(parts))


def unpack(packed: Packed) -> list[Slots | None]:
    """The slots, in the buffer's memory; they must not be changed."""
    memory = _address(packed.buffer)
    return [None if part is None else read_leaves(memory, *part) for part in packed.parts]


def _address(buffer: np.ndarray) -> Any:
    """The memory of an array, which lives as long; of one that is marked as not writable, too, of which PyTorch would
    warn. Where a leaf begins may decide how a product adds up, so the memory is aligned as it is everywhere."""
    if not len(buffer):
        return buffer
    if buffer.ctypes.data % _ALIGN:
        aligned = torch.empty(len(buffer), dtype=torch.uint8).numpy()
        aligned[:] = buffer
        buffer = aligned
    memory = (ctypes.c_char * len(buffer)).from_address(buffer.ctypes.data)
    memory.owner = buffer  # type: ignore[attr-defined]
    return memory
