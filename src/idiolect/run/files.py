"""Files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place and move it there, so that it is never half-written."""
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
