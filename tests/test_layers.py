"""The house: rooms stand on each other in layers, nothing imports upward, and heavy packages have one room each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import idiolect

ROOT = Path(idiolect.__file__).parent
LAYERS = [
    {"core"},
    {"data", "task", "models"},
    {"contract"},
    {"methods", "analysis"},
    {"kernels"},
    {"engines"},
    {"runs"},
    {"comparison"},
    {"tuning", "advice", "report", "reproductions"},
    {"flower"},
    {"cli", "testing"},
]
ROOMS = {
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "rich": {"report", "cli"},
    "matplotlib": {"report"},
    "flwr": {"flower"},
    "ray": {"engines"},
    "typer": {"cli"},
    "jinja2": {"report"},
    "optuna": {"tuning"},
}
"""Which rooms may import a package."""


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """What a file imports, as absolute names, and whether it does so when it is imported itself."""
    return tuple(read_imports(path))


def read_imports(path: Path) -> Iterator[tuple[str, bool]]:
    package = ["idiolect", *path.relative_to(ROOT).parts[:-1]]
    tree = ast.parse(path.read_text())
    typing = {id(node) for each in ast.walk(tree) if _is_type_checking(each) for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", id(node) not in typing


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def rooms() -> list[str]:
    return sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@cache
def edges() -> dict[tuple[str, str], list[str]]:
    """Which rooms import which, and in which files."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in ROOT.rglob("*.py"):
        here = path.relative_to(ROOT).parts[0]
        for name, _ in imports(path):
            parts = name.split(".")
            ours = parts[0] == "idiolect" and len(parts) > 1 and {here, parts[1]} <= set(rooms())
            if ours and parts[1] != here:
                found.setdefault((here, parts[1]), []).append(str(path.relative_to(ROOT)))
    return found


def test_every_room_has_a_layer() -> None:
    assert set(rooms()) == set().union(*LAYERS)
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("room", rooms())
def test_nothing_imports_upward(room: str) -> None:
    height = {name: at for at, layer in enumerate(LAYERS) for name in layer}
    upward = {there: files for (here, there), files in edges().items() if here == room and height[there] > height[here]}
    assert not upward


def test_rooms_of_one_layer_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {room: set() for room in rooms()}
    for here, there in edges():
        graph[here].add(there)

    def reach(room: str, seen: frozenset[str]) -> frozenset[str]:
        for there in graph[room] - seen:
            seen = reach(there, seen | {there})
        return seen

    assert not [room for room in graph if room in reach(room, frozenset())]


@pytest.mark.parametrize("package", ROOMS)
def test_heavy_packages_have_rooms_of_their_own(package: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in ROOMS[package]
        and any(name.split(".")[0] == package for name, _ in imports(path))
    }
    assert not users


def test_no_method_imports_another() -> None:
    folder = ROOT / "methods"
    others: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        for name, _ in imports(path):
            parts = name.split(".")
            if (
                parts[:2] == ["idiolect", "methods"]
                and len(parts) > 2
                and parts[2] not in (own, "papers")
                and own != "__init__"
            ):
                others.setdefault(own, set()).add(parts[2])
    assert not others
