"""What compiled kernels share: functions that are compiled once and kept, and words that numba lacks. Needs numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding, ir

WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
"""Whether there are 32 vector registers of 16 numbers; otherwise there are at least 16 of 8."""
FUSED = ("contract",)
"""A product and a sum may be one instruction."""
LOOSE = {"contract", "reassoc", "nsz"}
"""Besides, sums may be taken in another order, as vectors do; NaN and infinities stay what they are."""

_KERNELS = ("compiled.py", "lanes.py", "pooled.py", "products.py", "engines/dense_steps.py")


def _stamp() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in _KERNELS)).hexdigest()[:12]


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled when it is first used, and kept for the next process where there is a place for it: in a
    folder of its own for every version of the kernels, since what a function calls may change and it may not."""
    compiler, settings = numba.njit, numba.config  # type: Any, Any
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(Path(__file__).parent / "__pycache__" / _stamp())
    try:
        return compiler(function, cache=True, error_model="numpy", fastmath=LOOSE)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write
        return compiler(function, error_model="numpy", fastmath=LOOSE)  # type: ignore[no-any-return]
    finally:
        settings.CACHE_DIR = before


def everywhere(builder: ir.IRBuilder, number: Any, lanes: int) -> Any:
    """One number in all lanes of a vector."""
    empty, first = ir.VectorType(ir.FloatType(), lanes)(ir.Undefined), ir.IntType(32)(0)
    alone = builder.insert_element(empty, number, first)
    return builder.shuffle_vector(alone, empty, ir.VectorType(ir.IntType(32), lanes)(None))
