"""Compiled kernels for processors. The only room that imports numba; nothing else knows the processor.

`speed_up` rearranges a module, `dense_of` finds the compiled form of a small dense network; without numba, or where
nothing fits, everything runs as it is."""

from .convolutions import speed_up
from .dense import Dense, dense_of

__all__ = ["Dense", "dense_of", "speed_up"]
