"""Names that users and data bring along, as they may stand in the name of a file, on a terminal and in a picture. A
name is data: it may hold anything, and is kept as it is; only what is written of it is made safe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

LONGEST = 100
"""Bytes of a file's name that are taken from the text that it stands for."""


def file_name(text: str) -> str:
    """The name of a file or folder for any text: it leads nowhere else, is not too long, and no two share it.

    >>> file_name("ward-3"), file_name("a/../.."), file_name("..")
    ('ward-3', 'a-57717b', '5ec1f7')
    """
    name = _clean(text)
    return name if name and name == text else "-".join(filter(None, [name, _digest(text)]))


def slug(expression: str) -> str:
    """A folder's name for an expression; one that is nested or long ends in a hash, so that no two share a name.

    >>> slug("finetune(ditto, epochs=2)"), slug("finetune(ditto(epochs=2))")
    ('finetune-ditto-epochs=2', 'finetune-ditto-epochs=2-2e70c5')
    """
    is_plain = re.fullmatch(r"\w[\w.-]*(\([\w.=, -]*\))?", expression) and len(expression.encode()) <= LONGEST
    return _clean(expression) if is_plain else file_name(expression)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """By what names are sorted as people sort them: numbers inside them count as numbers.

    >>> sorted(["client 10", "client 2", "Client 1"], key=natural_key)
    ['Client 1', 'client 2', 'client 10']
    """
    parts = re.split(r"(\d+)", name)
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts if part]
    return (*key, (2, 0, name))


def _clean(text: str) -> str:
    name = re.sub(r"[^\w.=-]+", "-", text).strip("-.")
    return name.encode()[:LONGEST].decode(errors="ignore").rstrip("-.")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:6]


def visible(text: str, lines: bool = False) -> str:
    r"""Text for a terminal, a log or a page: what cannot be seen, or would steer a terminal, is spelled out. With
    `lines` line breaks stay.

    >>> visible("a\x1b[31m\nb"), visible("a\nb", lines=True) == "a\nb"
    ('a\\x1b[31m\\nb', True)
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or (lines and char == "\n") else ascii(char)[1:-1] for char in text)


def shorten(name: str, width: int = 24) -> str:
    """A name that fits beside an axis or into a column.

    >>> shorten("finetune(fedlag(ditto(lam=0.5)))")
    'finetune(fedlag(ditto(l…'
    """
    return name if len(name) <= width else f"{name[: width - 1]}…"


def shorten_apart(names: Sequence[str], width: int = 24) -> list[str]:
    """Names that fit, none like another: of those that begin alike the middle goes, or they are numbered.

    >>> shorten_apart(["University Hospital, ward 1", "University Hospital, ward 2", "home"], 16)
    ['Unive…al, ward 1', 'Unive…al, ward 2', 'home']
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(shorten(name, width), []).append(name)
    head, shown = width // 3, dict[str, str]()
    room = width - head - 1
    for short, alike in groups.items():
        ends = [name[-room:] for name in alike]
        if len(alike) > 1 and len({*ends}) < len(alike):  # the first difference lies further in front
            differ = next((at for at, signs in enumerate(zip(*alike, strict=False)) if len({*signs}) > 1), head)
            ends = [shorten(name[max(head, differ - 2) :], room) for name in alike]
        if len({*ends}) < len(alike):
            ends = [f" {number}" for number in range(1, len(alike) + 1)]
        apart = [f"{name[:head]}…{end}" for name, end in zip(alike, ends, strict=True)]
        shown |= dict(zip(alike, apart if len(alike) > 1 else [short], strict=True))
    return [shown[name] for name in names]


def picture_texts(names: Sequence[str], width: int) -> list[str]:
    """Names for a picture, shortened, none like another."""
    return [picture_text(name) for name in shorten_apart([visible(name) for name in names], width)]


def picture_text(text: str, width: int | None = None) -> str:
    r"""Text for a picture: nothing in it is taken for a formula; shortened to a width, if one is given.

    >>> picture_text(r"ward $\frac$ 1"), picture_text("a$b$c", width=4)
    ('ward \\$\\frac\\$ 1', 'a\\$b…')
    """
    shown = visible(text)
    return (shown if width is None else shorten(shown, width)).replace("$", r"\$")
