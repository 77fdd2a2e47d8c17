"""How far something is that takes long before a run begins, such as looking through a folder of images; said to whoever
watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Watch = Callable[[str, int, int], None]
"""(what, done, of how many)"""
EVERY = 0.2
"""Seconds between two reports."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watch_reading(watch: Watch) -> Iterator[None]:
    """Tell `watch` how far reading is, while in here."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items; where they take long, it is said how far they are.

    >>> with watch_reading(lambda *far: print(far)):
    ...     _ = [time.sleep(0.3) for _ in track("ab", 2, "reading letters")]
    ('reading letters', 1, 2)
    ('reading letters', 2, 2)
    """
    watch, said, begun = _watch.get(), time.monotonic(), False
    for done, item in enumerate(items):
        if watch is not None and time.monotonic() - said > EVERY:
            watch(what, done, total)
            said, begun = time.monotonic(), True
        yield item
    if watch is not None and begun:
        watch(what, total, total)
