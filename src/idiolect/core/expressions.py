"""The language in which methods, data sources, partitions and networks are written: `name`, `name(option=value)`,
`name(inner, option=value)`, `name:value`. Values are written as in YAML. Nothing is ever evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from .errors import InputError

_CODE = re.compile(r"(.+\.py|[A-Za-z_]\w*(\.\w+)+):[A-Za-z_]\w*")
_PAIRS = {")": "(", "]": "[", "}": "{"}
_QUOTES = "'\""


@dataclass(frozen=True)
class Expression:
    """A parsed expression: a name, and the texts of the values in its brackets."""

    name: str
    positional: tuple[str, ...]
    named: dict[str, str]


def names_code(name: str) -> bool:
    """Whether a name is that of code in a file, or in a module of a package.

    >>> names_code("my data.py:load"), names_code("package.module:load"), names_code("dirichlet:0.1")
    (True, True, False)
    """
    return _CODE.fullmatch(name) is not None


def split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes.

    >>> split("local, fedlag(ditto(lam=1), k=3), pfedgate(s=[0.5, 0.1])")
    ['local', 'fedlag(ditto(lam=1), k=3)', 'pfedgate(s=[0.5, 0.1])']
    """
    parts = [text[start:end].strip() for start, end in _find_parts(text, 0, len(text))]
    return parts if parts != [""] else []


def _find_parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the parts between commas begin and end, in a stretch of a text."""
    quote, opened = -1, list[int]()
    for at in range(start, end):
        char = text[at]
        if quote >= 0:
            quote = -1 if char == text[quote] else quote
        elif char in _QUOTES:
            quote = at
        elif char in _PAIRS.values():
            opened.append(at)
        elif char in _PAIRS:
            if not opened:
                raise _error(text, at, f"this {char!r} closes nothing")
            if text[begun := opened.pop()] != _PAIRS[char]:
                raise _error(text, at, f"this {char!r} does not close the {text[begun]!r} before it")
        elif char == "," and not opened:
            yield start, at
            start = at + 1
    if quote >= 0 or opened:
        raise _error(
            text, quote if quote >= 0 else opened[-1], f"this {'quote' if quote >= 0 else 'bracket'} is left open"
        )
    yield start, end


def parse(text: str) -> Expression:
    """Read one expression.

    >>> parse("fedlag(ditto(lam=0.5), k=3)")
    Expression(name='fedlag', positional=('ditto(lam=0.5)',), named={'k': '3'})
    >>> parse("dirichlet:0.1")
    Expression(name='dirichlet', positional=('0.1',), named={})
    """
    text = text.strip()
    if not text:
        raise InputError("an empty expression; write a name, as in fedavg or fedprox(mu=0.1)")
    head, bracket, _ = text.partition("(")
    if not bracket:
        name, colon, rest = text.partition(":")
        if colon and not names_code(text):
            return Expression(name.strip(), (rest.strip(),), {})
        return Expression(text, (), {})
    list(_find_parts(text, 0, len(text)))  # brackets and quotes fit
    if not text.endswith(")"):
        raise _error(text, text.rindex(")") + 1, "nothing may follow the closing bracket")
    positional: list[str] = []
    named: dict[str, str] = {}
    for start, end in _find_parts(text, len(head) + 1, len(text) - 1):
        part = text[start:end].strip()
        at = end - len(text[start:end].lstrip())
        key, equals, rest = (piece.strip() for piece in part.partition("="))
        if not part:
            if text[len(head) + 1 : -1].strip():
                raise _error(text, end, "an empty place before this comma" if text[end] == "," else "a comma too many")
        elif equals and key.isidentifier():
            if key in named:
                raise _error(text, at, f"the option {key!r} is given twice")
            named[key] = rest
        elif named:
            raise _error(text, at, "a value without a name after one with a name")
        else:
            positional.append(part)
    return Expression(head.strip(), tuple(positional), named)


def _error(text: str, at: int, problem: str) -> InputError:
    """An error that shows the place in the text."""
    return InputError(f"cannot read the expression: {problem}\n    {text}\n    {' ' * at}^")


def value(text: str) -> Any:
    """A value as in YAML; what YAML reads as text stays text, and so does what is quoted.

    >>> [value(v) for v in ("0.1", "1e-3", "true", "[1, 1e-3]", "ref", "null", "'1e-3'")]
    [0.1, 0.001, True, [1, 0.001], 'ref', None, '1e-3']
    """
    text = text.strip()
    if _is_quoted(text):
        return unquote(text)
    if text.startswith("[") and text.endswith("]"):
        return [value(part) for part in split(text[1:-1].strip().removesuffix(","))]
    try:
        return float(text) if _is_number(text) and not text.lstrip("+-").isdigit() else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(
            f"the value {text!r} cannot be read; write it as in YAML, such as 0.1, true or [1, 2]"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] in _QUOTES and text[0] == text[-1]


def unquote(text: str) -> str:
    """A text without the quotes around it, of which a doubled one inside stands for one.

    >>> unquote("'it''s'"), unquote("plain")
    ("it's", 'plain')
    """
    return text[1:-1].replace(2 * text[0], text[0]) if _is_quoted(text) else text


def write(value: Any) -> str:
    """A value as `value` reads it; text that would be read as anything else is quoted.

    >>> [write(each) for each in (0.1, True, None, (1, 2), "ref", "1e3", "a, b")]
    ['0.1', 'true', 'null', '[1, 2]', 'ref', "'1e3'", "'a, b'"]
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, dict):
        return str(yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)).strip()
    if isinstance(value, str) and not _reads_as_itself(value):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def _reads_as_itself(text: str) -> bool:
    """Whether a text needs no quotes."""
    if any(mark in text for mark in "()[]{},='\""):
        return False
    try:
        return bool(value(text) == text)
    except InputError:
        return False
