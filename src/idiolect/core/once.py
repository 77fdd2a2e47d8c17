"""Warnings that are given once."""

from __future__ import annotations

import logging

log = logging.getLogger("idiolect")
_SAID: set[str] = set()


def say_once(text: str, about: str = "") -> None:
    """Log a warning, unless this process has logged it, or one `about` the same, before."""
    if (about or text) not in _SAID:
        _SAID.add(about or text)
        log.warning("%s", text)


def forget_said() -> None:
    """Say everything again that there is to say."""
    _SAID.clear()
