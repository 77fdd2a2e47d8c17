"""The memory of this process: how the C library keeps it, and how much it was."""

from __future__ import annotations

import ctypes
import resource


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
