"""Checksums against damage: a flipped bit, a lost or a swapped entry. They are quick, and no proof against forgery."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

_SIZE = 2**64


def checksum(data: bytes, *key: Any) -> int:
    """The checksum of some bytes and of the key that they are stored under, so that swapped entries are noticed.

    >>> checksum(b"state", 3) == checksum(b"state", 4)
    False
    """
    return zlib.crc32(data, zlib.crc32(repr(key).encode()))


def add_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values by name, and their checksum."""
    return {**values, "checksum": checksum(json.dumps(values, sort_keys=True).encode())}


def take_checksum(values: Any) -> dict[str, Any]:
    """The inverse of `add_checksum`; a `ValueError` if these are not the values that it was added to.

    >>> take_checksum(add_checksum({"rounds": 3}))
    {'rounds': 3}
    >>> take_checksum({**add_checksum({"rounds": 3}), "rounds": 4})
    Traceback (most recent call last):
    ValueError: the checksum is wrong
    """
    known = {name: value for name, value in values.items() if name != "checksum"} if isinstance(values, dict) else {}
    if not known or values.get("checksum") != add_checksum(known)["checksum"]:
        raise ValueError("the checksum is wrong")
    return known


def seal(entries: Iterable[tuple[Any, ...]]) -> int:
    """A checksum of a set of entries to which entries can be added, and from which they can be taken, one by one.

    >>> whole = seal([("a", 1), ("b", 2)])
    >>> combine(whole, -seal([("b", 2)])) == seal([("a", 1)])
    True
    """
    return sum(_hash(entry) for entry in entries) % _SIZE


def combine(*seals: int) -> int:
    """The seal of several sets of entries together; a negative one takes its entries away."""
    return sum(seals) % _SIZE


def _hash(entry: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(entry).encode(errors="surrogatepass"), digest_size=8).digest(), "little")
