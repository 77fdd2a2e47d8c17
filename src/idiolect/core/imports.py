"""The files that named code imports while it is loaded: they are read and checked as the named file itself is."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from .trust import allow_code

INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Where installed packages are: who may write there, may run code anyway."""
_OURS = str(Path(__file__).parents[1])


@contextmanager
def checked_imports(name: str) -> Iterator[None]:
    """While the code that was asked for as `name` is loaded, check every file that it imports, unless it is installed,
    before any of it runs."""
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds the modules that Python would find on its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, module: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of a module whose text is checked when it is loaded; None leaves it to Python."""
        spec = PathFinder.find_spec(module, path, target)
        if spec is None or not spec.has_location or str(spec.origin).startswith((*INSTALLED, _OURS)):
            return None
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(self.name, spec.loader)
            return spec
        _read_allowed(_find_file(Path(str(spec.origin))), self.name)
        return None


class _Loader(SourceFileLoader):
    """Runs the text that was checked, and nothing that was compiled before."""

    def __init__(self, name: str, plain: SourceFileLoader) -> None:
        super().__init__(plain.name, plain.path)
        self.asked = name

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text of the file."""
        return self.source_to_code(_read_allowed(Path(self.path), self.asked), self.path)


def _read_allowed(path: Path, name: str) -> bytes:
    """The content of a file that may run, since the code that was asked for as `name` imports it."""
    content = path.read_bytes()
    allow_code(name, content, path, imported=True)
    return content


def _find_file(origin: Path) -> Path:
    """The file that a module is in: itself, or the archive that holds it."""
    return next((path for path in (origin, *origin.parents) if path.is_file()), origin)
