"""Compiled kernels for processors. The only package that imports numba; nothing else knows the processor.

`speed_up` rearranges a network with convolutions, `channels_last` its inputs and kernels, `find_dense` finds the
compiled form of a dense network, `has_bf16` says whether half precision pays, `has_numba` whether kernels are compiled.
Without numba, or where nothing fits, PyTorch computes everything."""

from .convolutions import channels_last, speed_up
from .dense import Dense, find_dense
from .processor import has_bf16, has_numba

__all__ = ["Dense", "channels_last", "find_dense", "has_bf16", "has_numba", "speed_up"]
