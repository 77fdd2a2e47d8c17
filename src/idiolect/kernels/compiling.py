"""Kernels are compiled when they are first called, by one process at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def compile_alone() -> Iterator[None]:
    """While kernels may be compiled, keep other processes from it; they wait and then find what was compiled.

    numba numbers the files in which it keeps what it compiled. Two processes that look for the next number at the same
    time may take the same one, and one kernel then finds the other's code in place of its own, now and in all later
    runs: PyTorch would compute in its stead, with other last bits.
    """
    kernels = sys.modules.get(f"{__package__}.simd")
    folder = None if kernels is None else kernels.array_at.stats.cache_path
    with ExitStack() as stack:
        if folder is not None:
            with suppress(ImportError, OSError):  # where files have no locks
                import fcntl

                file = stack.enter_context((Path(folder) / "compiling.lock").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
