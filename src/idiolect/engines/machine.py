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


def free_memory(device: str) -> int | None:
    """The bytes that are free on a GPU, of all where none is named on the one with the fewest; None of a processor.

    >>> free_memory("cpu")
    """
    where = torch.device(device)
    if where.type != "cuda":
        return None
    numbers = [where.index] if ":" in device else range(torch.cuda.device_count())
    return min((int(torch.cuda.mem_get_info(number)[0]) for number in numbers), default=None)


def peak_memory_mb() -> float:
    """The largest resident memory of this process so far."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
