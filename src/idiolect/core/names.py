"""Names that users and data bring along, as they may stand in the name of a file, on a terminal and in a picture. A
name is data: it may hold anything, and is kept as it is; only what is written of it is made safe."""

from __future__ import annotations

import hashlib
import re

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


def picture_text(text: str, width: int | None = None) -> str:
    r"""Text for a picture: nothing in it is taken for a formula; shortened to a width, if one is given.

    >>> picture_text(r"ward $\frac$ 1"), picture_text("a$b$c", width=4)
    ('ward \\$\\frac\\$ 1', 'a\\$b…')
    """
    shown = visible(text)
    return (shown if width is None else shorten(shown, width)).replace("$", r"\$")
