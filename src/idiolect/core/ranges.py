"""Rounds as people write them: `1-40`, `21-`, `1-10, 31-`; counted from 1, both ends belong to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .errors import InputError

Ranges = tuple[tuple[int, float], ...]
"""First and last rounds, counted from 0; the last may be infinite."""


def parse_ranges(written: Any, owner: str) -> Ranges:
    """Ranges of rounds from a text, a number or a list of these; `owner` is who has them, for errors.

    >>> parse_ranges("1-10, 31-", "ward 3"), parse_ranges([7, "-3"], "ward 9")
    (((0, 9), (30, inf)), ((6, 6), (0, 2)))
    """
    parts = written if isinstance(written, Sequence) and not isinstance(written, str) else str(written).split(",")
    ranges: list[tuple[int, float]] = []
    for part in parts:
        first, dash, last = str(part).strip().partition("-")
        numbers = [text.strip() for text in (first, last)]
        if not any(numbers) or not all(text.isdecimal() or not text for text in numbers):
            raise InputError(f"{owner}: {part!r} are no rounds; write them as in 1-40, 21- or 1-10, 31-")
        start = int(numbers[0] or 1)
        end = (int(numbers[1]) if numbers[1] else math.inf) if dash else start
        if start < 1 or end < start:
            raise InputError(f"{owner}: {part!r} are no rounds; they count from 1, the first before the last")
        ranges.append((start - 1, end - 1))
    return tuple(ranges)
