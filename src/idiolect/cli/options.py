"""Options of methods, data sources and partitions: as a table, as one line and as plain values."""

from __future__ import annotations

from typing import Any

from ..core.expressions import write
from ..core.options import OptionInfo, options_of
from . import screen


def show_options(cls: type) -> None:
    """A table of a class's options."""
    if known := options_of(cls):
        rows = [(name, write(info.default), describe_limits(info), info.limits.help) for name, info in known.items()]
        screen.show_table(("option", "default", "allowed", "meaning"), rows, whole=("option", "default"), text=True)


def describe_limits(info: OptionInfo) -> str:
    """What an option may be, in words."""
    if info.limits.choices:
        return ", ".join(map(str, info.limits.choices)) + ", none" * (info.default is None)
    return " in ".join(filter(None, [info.kind, str(info.limits)]))


def list_defaults(cls: type) -> str:
    """A class's options with their defaults, in one line."""
    return ", ".join(f"{name}={write(info.default)}" for name, info in options_of(cls).items())


def options_as_dicts(cls: type) -> list[dict[str, Any]]:
    """A class's options as plain values."""
    return [
        {
            "name": info.name,
            "type": info.kind,
            "default": info.default,
            "range": str(info.limits),
            "choices": list(info.limits.choices),
            "help": info.limits.help,
        }
        for info in options_of(cls).values()
    ]
