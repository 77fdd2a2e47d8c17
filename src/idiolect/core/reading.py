"""What goes on before a run's first round is done, such as looking through a folder of images, and how far it is; said
to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Watch = Callable[[str, int, int], None]
"""(what, done, of how many); of one where it is not known how far it is"""
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


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what goes on while in here.

    >>> with watch_reading(lambda *far: print(far)), doing("reading the data"):
    ...     print("...")
    ('reading the data', 0, 1)
    ...
    ('reading the data', 1, 1)
    """
    watch = _watch.get()
    if watch is not None:
        watch(what, 0, 1)
    try:
        yield
    finally:
        if watch is not None:
            watch(what, 1, 1)


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
