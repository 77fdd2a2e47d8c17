"""What this process takes of the machine it runs on: cores, threads and memory."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, and as many as before afterwards.

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


def tune_allocator() -> None:
    """Let glibc keep large blocks of this process instead of returning them to the system after every step, which would
    have to clear every page of them again: half of the time where a model has millions of parameters."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        for parameter in (-1, -2, -3):  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
            libc.mallopt(parameter, 1 << 28)
    except (OSError, AttributeError):
        return


def peak_memory_mb() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
