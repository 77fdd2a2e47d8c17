"""What packages of other people add, found through entry points."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any

from .code import explain
from .errors import IdiolectError

log = logging.getLogger("idiolect")


def load_plugins(group: str, add: Callable[[str, Any], None]) -> None:
    """Give `add` the names and values of the entry points of a group, such as `idiolect.methods`. A value may be the
    thing itself or a module which registers what it has. What cannot be imported, or is refused, is left out with a
    warning, so that nobody's package stops a command that does not use it."""
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name):
        try:
            add(entry.name, entry.load())
        except (Exception, SystemExit) as error:  # whatever somebody's code raises
            package = entry.dist.name if entry.dist else "a package"
            why = str(error) if isinstance(error, IdiolectError) else explain(error)
            log.warning("%s: its %s %r cannot be used: %s", package, group, entry.name, why)
