"""Files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import RunFolderError


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place and move it there, so that it is never half-written."""
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none, or say why it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from error
