"""Where code is that no user wrote: who may write there, may run code anyway."""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path


def _list_places() -> tuple[Path, ...]:
    """The folders of Python's own modules, of installed packages and of this one, also as they are without links."""
    places = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    folders = [Path(__file__).parents[1], *map(Path, places)]
    return tuple({form for folder in folders for form in (folder.absolute(), folder.resolve())})


PLACES = _list_places()


def is_installed(file: str | Path) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one.

    >>> is_installed(site.__file__), is_installed(__file__), is_installed(f"{Path(__file__).parents[1]}_x/evil.py")
    (True, True, False)
    """
    path = Path(file)
    path = path.resolve() if ".." in path.parts else path.absolute()
    return any(path.is_relative_to(place) for place in PLACES)
