"""Randomness by name. Every random number is drawn from a generator that (seed, stream, numbers) determine,
so the order of clients, the number of workers and a resume change nothing."""

from __future__ import annotations

import zlib

import numpy as np

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
