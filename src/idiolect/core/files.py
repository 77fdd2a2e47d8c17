"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import RunFolderError
from .names import visible


def home() -> Path:
    """Where state that belongs to no folder of the user's is kept: IDIOLECT_HOME, else ~/.idiolect."""
    return Path(os.environ.get("IDIOLECT_HOME") or "~/.idiolect").expanduser()


PART = ".part"


def part_of(path: Path) -> Path:
    """Where a file or a folder is written before it is moved to its place."""
    return path.with_name(f".{path.name}{PART}")


def is_part(path: Path) -> bool:
    """Whether this is what a process that was killed left of a file that it was writing."""
    return path.name.startswith(".") and path.name.endswith(PART)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which is moved to its place when everything is written; there it must be free."""
    part = part_of(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there, at once, so that no half of it is ever seen."""
    part = part_of(path)
    shutil.rmtree(part, ignore_errors=True)
    if path.exists():
        path.rename(part)
        shutil.rmtree(part)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place and move it there, so that it is never half-written."""
    part = part_of(path)
    write(part)
    part.replace(path)


def finite_or_null(value: Any) -> Any:
    """Plain values for JSON, which has no numbers that are not finite: None in their place.

    >>> finite_or_null({"a": (1.0, math.inf)})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): finite_or_null(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def explain(error: Exception) -> str:
    """Why a file cannot be used, in a few words."""
    return getattr(error, "strerror", None) or visible(str(error).partition("\n")[0])


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none, or say why it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from error
