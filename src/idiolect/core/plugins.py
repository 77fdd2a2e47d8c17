"""What packages of other people add, found through entry points."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator
from typing import Any

from .code import explain

log = logging.getLogger("idiolect")


def find_plugins(group: str) -> Iterator[tuple[str, Any]]:
    """The names and values of the entry points of a group, such as `idiolect.methods`. A value may be the thing itself
    or a module which registers what it has. What cannot be imported is left out with a warning."""
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name):
        try:
            yield entry.name, entry.load()
        except Exception as error:  # whatever somebody's code raises
            package = entry.dist.name if entry.dist else "a package"
            log.warning("%s: its %s %r cannot be used: %s", package, group, entry.name, explain(error))
