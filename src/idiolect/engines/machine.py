"""What this process takes of the machine it runs on: cores, threads and memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use so many threads, and as many as before afterwards.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory_mb() -> float:
    """The largest resident memory of this process so far."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
