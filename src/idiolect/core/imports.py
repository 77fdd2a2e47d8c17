"""The imports of code that a user names. The files beside it come as they were read and looked up; every other file is
looked up before it runs, unless it is installed, and so is what that code imports later, in the middle of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from .beside import Files
from .errors import InputError
from .installed import is_installed
from .trust import allow_code, may_run_all

_served: Files = {}
"""The modules that were imported from beside a user's file."""
_MACHINERY = {"importlib", "_frozen_importlib", "_frozen_importlib_external"}
"""Whose frames lie between an import and the search for it."""


@contextmanager
def checked_imports(name: str, files: Files, modules: Sequence[str]) -> Iterator[None]:
    """While the `modules` that were asked for as `name` are loaded, what they import comes from the `files` beside them
    where nothing else of that name is found, and is checked where it is not installed."""
    _forget_edited(files)
    earlier = [finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.name == name]
    finder = _Finder(name, files, {*modules}.union(*(old.modules for old in earlier)))
    path = [*sys.path]
    sys.meta_path[:] = [finder, *(other for other in sys.meta_path if other not in earlier)]
    try:
        yield
    finally:
        finder.added = [Path(entry).absolute() for entry in sys.path if entry not in path]
        finder.added += [entry for old in earlier for entry in old.added]
        finder.is_loading = False
        if finder.is_done():
            sys.meta_path.remove(finder)


def _forget_edited(files: Files) -> None:
    """Modules of an earlier content are imported anew, and with them all that may have taken something from them."""
    for name, (path, _) in files.items():
        if name in _served and _served[name][0] != path and name in sys.modules:
            raise InputError(
                f"{_served[name][0]} and {path} are both imported as {name!r}; rename one of them, or use one process"
                " for each"
            )
    if any(name in _served and _served[name] != file for name, file in files.items()):
        for name in files.keys() & _served.keys():
            sys.modules.pop(name, None)


class _Finder(MetaPathFinder, Loader):
    """Finds what Python would find, and then the files beside; what is not installed is checked and loaded here.

    It stays where there are files that were not imported yet, and where the code came from settings that are not
    trusted: then it answers what that code imports, and everybody who would be led to a folder that the code has put on
    Python's path."""

    def __init__(self, name: str, files: Files, modules: set[str]) -> None:
        self.name, self.files, self.modules = name, files, modules
        self.context = copy_context()
        """Whose settings named the code, which decides what may run, also when it is imported later."""
        self.is_loading = True
        self.added: list[Path] = []
        """What the code has put on Python's path while it was loaded."""

    def is_done(self) -> bool:
        """Whether later imports are Python's own business."""
        return self.context.copy().run(may_run_all, self.name) and all(name in sys.modules for name in self.files)

    def find_spec(self, module: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a module is that is served or checked; None leaves it to Python."""
        is_asked = self.is_loading or _find_importer() in self.modules
        if not is_asked and not self.added:
            return None
        spec = _ask_others(module, path, target)
        origin = Path(str(spec.origin)).absolute() if spec is not None and spec.has_location else None
        if not is_asked and not (origin and any(origin.is_relative_to(entry) for entry in self.added)):
            return None
        if module in self.files and (spec is None or origin == self.files[module][0]):
            self.modules.add(module)
            return self._serve(module)
        if spec is None or origin is None or is_installed(origin):
            return None
        self.modules.add(module)
        if isinstance(spec.loader, SourceFileLoader | SourcelessFileLoader):
            kind = _Source if isinstance(spec.loader, SourceFileLoader) else _Compiled
            spec.loader = kind(self, spec.loader.name, spec.loader.path)
            return spec
        self.read(_find_file(origin))
        return None

    def read(self, path: Path) -> bytes:
        """The content of a file that may run, since the code that was asked for imports it."""
        content = path.read_bytes()
        self.context.copy().run(allow_code, self.name, content, path, imported=True)
        return content

    def _serve(self, module: str) -> ModuleSpec | None:
        file, _ = _served[module] = self.files[module]
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(module, file, loader=self, submodule_search_locations=inside)

    def exec_module(self, module: ModuleType) -> None:
        """Run a gathered file, as it was read."""
        path, content = self.files[module.__name__]
        exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)


class _Source(SourceFileLoader):
    """Runs the text that was checked, and nothing that was compiled before."""

    def __init__(self, finder: _Finder, name: str, path: str) -> None:
        super().__init__(name, path)
        self.finder = finder

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text of the file."""
        return self.source_to_code(self.finder.read(Path(self.path)), self.path)


class _Compiled(SourcelessFileLoader):
    """Runs the compiled code that was checked, where there is no text."""

    def __init__(self, finder: _Finder, name: str, path: str) -> None:
        super().__init__(name, path)
        self.finder = finder

    def get_data(self, path: str) -> bytes:
        """The content of the file."""
        return self.finder.read(Path(path))


def _ask_others(module: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """What Python would find."""
    finders = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    return next((spec for finder in finders if (spec := finder.find_spec(module, path, target)) is not None), None)


def _find_importer() -> str:
    """The module whose import is being answered."""
    frame = sys._getframe(2)
    while (name := str(frame.f_globals.get("__name__"))).partition(".")[0] in _MACHINERY and frame.f_back:
        frame = frame.f_back
    return name


def _find_file(origin: Path) -> Path:
    """The file that a module is in: itself, or the archive that holds it."""
    return next((path for path in (origin, *origin.parents) if path.is_file()), origin)
