"""Shared memory for slots: one process writes leaves, others read them in place; only names and places are sent."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing import reduction
from typing import Any

from torch import Tensor

from ..core.tree import Slots
from .flat import Layout, lay_out, read_leaves, write_leaves

# The file is sparse: only what is written takes memory, and it is taken again for the next round.
_SIZE = 1 << 36


class Arena:
    """A sparse file in memory that processes share; `reset` makes its space free again.

    >>> import torch
    >>> arena = Arena()
    >>> layout = arena.write({"params": {"w": torch.tensor([1.0, 2.0])}, "empty": {}})
    >>> arena.read(layout)["params"]["w"]
    tensor([1., 2.])
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("idiolect")
        else:
            handle, path = tempfile.mkstemp()
            os.unlink(path)
        os.ftruncate(handle, _SIZE)
        self._open(handle)

    def _open(self, handle: int) -> None:
        self._handle, self._map, self._end = handle, mmap.mmap(handle, _SIZE), 0
        weakref.finalize(self, os.close, handle)

    def __getstate__(self) -> Any:
        """The open file, for a process that is spawned and so inherits nothing."""
        return reduction.DupFd(self._handle)

    def __setstate__(self, state: Any) -> None:
        self._open(state.detach())

    def reset(self) -> None:
        """Forget everything written; leaves that were read before must not be used any more."""
        self._end = 0

    def write(self, slots: Mapping[str, Mapping[str, Tensor]]) -> Layout:
        """Copy all leaves into the arena; says where they are."""
        layout, self._end = lay_out(slots, self._end)
        write_leaves(self._map, layout, slots)
        return layout

    def read(self, layout: Layout) -> Slots:
        """The leaves in place; they must not be changed."""
        return read_leaves(self._map, layout)
