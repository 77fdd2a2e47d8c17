"""The language in which methods, data sources, partitions and networks are written: `name`, `name(option=value)`,
`name(inner, option=value)`, `name:value`. Values are written as in YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from .errors import InputError

_OPEN = "([{"


_CLOSE = ")]}"


@dataclass(frozen=True)
class Expression:
    """A parsed expression: a name, what stands in its brackets, and where it began."""

    name: str
    positional: tuple[str, ...]
    named: dict[str, str]


def split(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside brackets and quotes.

    >>> split("local, fedlag(ditto(lam=1), k=3), pfedgate(s=[0.5, 0.1])")
    ['local', 'fedlag(ditto(lam=1), k=3)', 'pfedgate(s=[0.5, 0.1])']
    """
    parts, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth < 0:
                raise InputError(_point(text, at, f"this {char!r} closes nothing"))
        elif char == separator and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    if depth or quote:
        raise InputError(_point(text, len(text), f"a {'quote' if quote else 'bracket'} is left open"))
    parts.append(text[start:].strip())
    return parts if parts != [""] else []


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
    head, bracket, rest = text.partition("(")
    if not bracket:
        name, colon, value = text.partition(":")
        if colon and not name.endswith(".py"):
            return Expression(name.strip(), (value.strip(),), {})
        return Expression(text, (), {})
    if not rest.rstrip().endswith(")"):
        raise InputError(_point(text, len(text), "the closing bracket is missing"))
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in split(rest.rstrip()[:-1]):
        if not part:
            raise InputError(_point(text, len(head) + 1, "an empty place between two commas"))
        key, equals, value = part.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise InputError(_point(text, text.find(part), f"the option {key.strip()!r} is given twice"))
            named[key.strip()] = value.strip()
        elif named:
            raise InputError(_point(text, text.find(part), "a value without a name after one with a name"))
        else:
            positional.append(part)
    return Expression(head.strip(), tuple(positional), named)


def value(text: str) -> Any:
    """A value as in YAML; what YAML reads as text stays text.

    >>> [value(v) for v in ("0.1", "1e-3", "true", "[1, 2]", "ref", "null")]
    [0.1, 0.001, True, [1, 2], 'ref', None]
    """
    try:
        return float(text) if _is_number(text) and not text.lstrip("+-").isdigit() else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(
            f"the value {text!r} cannot be read; write it as in YAML, such as 0.1, true or [1, 2]"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _point(text: str, at: int, problem: str) -> str:
    return f"cannot read the expression: {problem}\n    {text}\n    {' ' * at}^"


def write(held: Any) -> str:
    """A value as `value` reads it."""
    if held is None:
        return "null"
    if isinstance(held, bool):
        return str(held).lower()
    if isinstance(held, list | tuple):
        return "[" + ", ".join(map(write, held)) + "]"
    if isinstance(held, str) and any(mark in held for mark in "()[]{},='\""):
        return f"'{held}'" if "'" not in held else f'"{held}"'
    return str(held)
