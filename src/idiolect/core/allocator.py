"""The allocator of this process. Its settings cannot be read or put back, so only processes that are Idiolect's own,
workers and the command line, change them; a program that imports Idiolect keeps its own."""

from __future__ import annotations

import ctypes


def tune_allocator() -> None:
    """Let glibc keep large blocks of this process instead of returning them to the system after every step, which would
    have to clear every page of them again: half of the time where a model has millions of parameters."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        for parameter in (-1, -2, -3):  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
            libc.mallopt(parameter, 1 << 28)
    except (OSError, AttributeError):
        return
