"""The files beside a user's file that it imports, as a script would. They are read before anything runs, so that their
content can be looked up like that of the file itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Files = dict[str, tuple[Path, bytes]]
"""Modules by name: their files and what these hold."""


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
