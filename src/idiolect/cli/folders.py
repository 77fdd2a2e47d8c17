"""Folders that commands are given or choose."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import RunFolderError


def next_free(base: Path) -> Path:
    """`base`, or base-2, base-3, ... where it is taken.

    >>> folder = getfixture("tmp_path")
    >>> next_free(folder / "a").name, (folder / "a").mkdir(), next_free(folder / "a").name
    ('a', None, 'a-2')
    """
    tries = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in range(1, 10**6))
    return next(path for path in tries if not path.exists())


def settings_file(place: Path | None) -> Path | None:
    """The file of settings that a path names: itself, or that of a run or comparison."""
    from ..comparison.folder import SPEC

    if place is None or not place.is_dir():
        return place
    for name in ("config.yaml", SPEC):
        if (place / name).is_file():
            return place / name
    raise RunFolderError(f"{place} holds no run and no comparison; give a folder that does, or a file of settings")
