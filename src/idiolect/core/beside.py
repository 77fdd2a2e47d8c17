"""The files beside a user's file that it imports, as a script would. They are read before anything runs, so that their
content can be looked up like that of the file itself, and what runs is what was read."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from .errors import InputError

Files = dict[str, tuple[Path, bytes]]
"""Modules by name: their files and what these hold."""
_served: dict[str, tuple[Path, bytes]] = {}
"""The modules that were imported from beside a user's file."""


def gather_imports(path: Path, content: bytes) -> Files:
    """The modules and packages in the folder of a file that it imports, or that these import."""
    files: Files = {}
    waiting = [content]
    while waiting:
        for name in _list_imports(waiting.pop()):
            for module, file in _find(path.parent, name):
                if module not in files and file != path:
                    files[module] = (file, file.read_bytes())
                    waiting.append(files[module][1])
    return files


def _list_imports(content: bytes) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # which is said when the file is run
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _find(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """A module of a folder, or a package with all its modules."""
    if (folder / f"{name}.py").is_file():
        yield name, folder / f"{name}.py"
    elif (folder / name / "__init__.py").is_file():
        for file in sorted((folder / name).rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


@contextmanager
def importing(files: Files) -> Iterator[None]:
    """Modules that are found nowhere else come from these files."""
    for name, (path, _) in files.items():
        if name in _served and _served[name][0] != path and name in sys.modules:
            raise InputError(
                f"{_served[name][0]} and {path} are both imported as {name!r}; rename one of them, or use one process"
                " for each"
            )
        if name in _served and _served[name] != files[name]:  # edited since
            sys.modules.pop(name, None)
    finder = _Finder(files)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, files: Files) -> None:
        self.files = files

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.files:
            return None
        file, _ = _served[name] = self.files[name]
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, loader=self, submodule_search_locations=inside)

    def exec_module(self, module: ModuleType) -> None:
        path, content = self.files[module.__name__]
        exec(compile(content, path, "exec"), module.__dict__)
