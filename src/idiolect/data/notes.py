"""What is said, once, where data are taken in a way that may not be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.once import say_once

if TYPE_CHECKING:
    from .federation import Federation

MANY = 20
"""So many different whole numbers, or more, may well be measurements."""


def say_classes(what: str, classes: int) -> None:
    """Say that whole numbers are taken as classes, where they may be measurements."""
    if classes > MANY:
        say_once(
            f"{what}: whole numbers are taken as {classes} classes; predict=numbers takes them as numbers to predict,"
            " predict=classes says that classes are meant"
        )


def say_tokens(what: str, largest: int, lowest: int = 0) -> None:
    """Say that whole numbers are taken as tokens."""
    span = f"up to {largest}" if lowest >= 0 else f"from {lowest} to {largest}"
    doubt = "" if lowest >= 0 else ", though no token is below 0"
    say_once(
        f"{what} are whole numbers {span}, which are taken as tokens{doubt}; inputs=numbers takes them as"
        " measurements,"
        " inputs=tokens says that tokens are meant"
    )


def say_missing_classes(data: Federation) -> None:
    """Say which classes no client has a sample of."""
    if data.classes is None or data.names.classes:
        return
    missing = (data.label_counts().sum(0) == 0).nonzero().flatten().tolist()
    if not missing:
        return
    shown = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    help = (
        ": labels that start at 1 waste an output; number them from 0, or give them as text" if missing == [0] else ""
    )
    say_once(f"{data.name}: no client has a sample of class {shown}, of {data.classes} classes{help}")
