"""What a shell proposes while a command is typed: names of methods, and choices of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core.options import OptionInfo


def complete_method(incomplete: str) -> list[tuple[str, str]]:
    """Methods whose names begin so, with what they do. PyTorch is not loaded for them."""
    from .methods import list_methods

    return [(each["name"], each["title"]) for each in list_methods() if each["name"].startswith(incomplete)]


def complete_setting(info: OptionInfo) -> Callable[[str], Iterable[str | tuple[str, str]]] | None:
    """What completes a setting; None where anything may stand."""
    if info.name == "method":
        return complete_method
    choices = info.limits.choices
    return (lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]) if choices else None
