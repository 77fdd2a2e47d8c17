"""Randomness by name. Every random number is drawn from a generator that (seed, stream, numbers) determine,
so the order of clients, the number of workers and a resume change nothing."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

LARGEST_SEED = 2**63 - 1
"""PyTorch takes no larger ones."""


def sequence(seed: int, stream: str, *numbers: int) -> np.random.SeedSequence:
    """A seed that depends on all its arguments; numbers may be negative (set-up rounds are)."""
    words = (zlib.crc32(stream.encode()), len(numbers), *(number & 0xFFFFFFFF for number in numbers))
    return np.random.SeedSequence(seed, spawn_key=words)


def generator(seed: int, stream: str, *numbers: int) -> np.random.Generator:
    """A NumPy generator for one purpose.

    >>> int(generator(0, "select", 3).integers(100)) == int(generator(0, "select", 3).integers(100))
    True
    """
    return np.random.Generator(np.random.PCG64(sequence(seed, stream, *numbers)))


def torch_seed(seed: int, stream: str, *numbers: int) -> int:
    """A seed for a PyTorch generator."""
    return int(sequence(seed, stream, *numbers).generate_state(1, np.uint64)[0] >> 1)


_GOLDEN = 0x9E3779B97F4A7C15


def uniforms(key: int, numbers: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`count` random numbers in [0, 1) for each of some numbered things: [things, count]. Each depends on `key`, the
    thing's number and its own place alone (SplitMix64), so that it is the same in whatever company it is drawn.

    >>> both = uniforms(7, np.array([3, 5]), 2)
    >>> bool((uniforms(7, np.array([5]), 2) == both[1:]).all())
    True
    """
    start = _mix(np.array([key], np.uint64)) ^ _mix(numbers.astype(np.uint64) * np.uint64(_GOLDEN))
    places = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return (_mix(start[:, None] + places) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
