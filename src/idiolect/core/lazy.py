"""Packages whose names are imported on first use (PEP 562), so that importing a package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its names, and its modules, on first use.

    Args:
        package: the package's name.
        names: for each module of the package, the names that it gives to the package, between blanks.

    >>> get, _ = lazy_names("idiolect.core", {"errors": "InputError OptionError"})
    >>> get("OptionError")
    <class 'idiolect.core.errors.OptionError'>
    """
    homes = {name: f"{package}.{module}" for module, listing in names.items() for name in listing.split()}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in modules():
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def modules() -> set[str]:
        return {module.name for module in iter_modules(sys.modules[package].__path__)}

    def list_names() -> list[str]:
        special = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*special, *homes, *modules()})

    return get, list_names
