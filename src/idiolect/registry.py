"""Registries: name -> class, for methods, data sources, partitions and networks, and the one
expression language in which all of them are written: `name`, `name(option=value)`,
`name(inner, option=value)`, `name:value`. Values are written as in YAML."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import yaml

from .errors import InputError, UnknownNameError
from .options import did_you_mean, make, options_of

T = TypeVar("T")
_OPEN, _CLOSE = "([{", ")]}"


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


class Registry(Generic[T]):
    """Classes of one kind by name and alias, built from expressions."""

    def __init__(self, kind: str, base: type | None = None) -> None:
        self.kind = kind
        self.base = base
        self._classes: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, *aliases: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: enter the class under `name` and `aliases`."""

        def enter(cls: type[T]) -> type[T]:
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            self._aliases.update(dict.fromkeys(aliases, name))
            return cls

        return enter

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def __contains__(self, name: object) -> bool:
        return name in self._classes or name in self._aliases

    def get(self, name: str) -> type[T]:
        """The class registered under `name`, or of `path/to/file.py:Class`."""
        if ".py:" in name:
            return self._from_file(name)
        key = name.lower().replace("-", "").replace("_", "")
        plain = {each.replace("-", "").replace("_", ""): each for each in (*self._classes, *self._aliases)}
        if key not in plain:
            raise UnknownNameError(
                f"there is no {self.kind} {name!r}.{did_you_mean(name.lower(), plain.values())}"
                f" Known: {', '.join(self)}."
            )
        found = plain[key]
        return self._classes[self._aliases.get(found, found)]

    def _from_file(self, name: str) -> type[T]:
        path, _, attribute = name.rpartition(":")
        if not Path(path).is_file():
            raise UnknownNameError(f"{name!r}: there is no file {path!r}; write path/to/file.py:Class")
        module = _module(Path(path).resolve(), Path(path).stat().st_mtime_ns)
        found = getattr(module, attribute, None)
        if not isinstance(found, type) or (self.base and not issubclass(found, self.base)):
            raise UnknownNameError(f"{path} has no class {attribute!r} that is a {self.kind}")
        found.name = name  # type: ignore[attr-defined]
        return found

    def build(self, text: str | T) -> T:
        """Build what an expression describes; anything but a string is returned as it is."""
        if not isinstance(text, str):
            return text
        expression = parse(text)
        cls = self.get(expression.name)
        known = list(options_of(cls))
        inner = any(each.name == "inner" for each in dataclasses.fields(cls))  # type: ignore[arg-type]
        places = (["inner"] if inner else []) + known
        if len(expression.positional) > len(places):
            raise InputError(
                f"{text!r}: {expression.name} takes at most {len(places)} values without a name"
                f" ({', '.join(places) or 'none'}), not {len(expression.positional)}"
            )
        given = dict(zip(places, expression.positional, strict=False))
        if both := given.keys() & expression.named.keys():
            raise InputError(f"{text!r}: {both.pop()!r} is given twice")
        raw = given | expression.named
        values = {n: self.build(v) if n == "inner" and inner else self._value(cls, n, v) for n, v in raw.items()}
        return make(cls, values, getattr(cls, "presets", None))  # type: ignore[no-any-return]

    @staticmethod
    def _value(cls: type, name: str, text: str) -> Any:
        info = options_of(cls).get(name)
        return text.strip("'\"") if info and info.types == (str,) else value(text)

    def split_and_build(self, text: str) -> list[T]:
        """Build every expression of a list that is split at commas outside brackets."""
        return [self.build(part) for part in split(text)]


@cache
def _module(path: Path, changed: int) -> ModuleType:
    """The module in a file, run once for every change of it, so that its classes are the same ones each time."""
    spec = importlib.util.spec_from_file_location(f"{path.stem} in {path.parent}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


def describe(thing: Any) -> str:
    """The shortest expression that builds `thing`: the inverse of `Registry.build`."""
    parts = []
    for each in dataclasses.fields(thing):
        held = getattr(thing, each.name)
        if each.name == "inner":
            parts.append(describe(held))
        elif each.name in options_of(type(thing)) and held != options_of(type(thing))[each.name].default:
            parts.append(f"{each.name}={write(held)}")
    name = type(thing).name
    return f"{name}({', '.join(parts)})" if parts else name


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


def override(thing: T, path: str, text: str) -> T:
    """A copy with one option changed: `override(method, "inner.lam", "0.5")`."""
    first, _, rest = path.partition(".")
    if rest:
        if first != "inner" or not hasattr(thing, "inner"):
            raise UnknownNameError(f"{type(thing).name!r} wraps nothing, so {path!r} names no option of it")  # type: ignore[attr-defined]
        return dataclasses.replace(thing, inner=override(thing.inner, rest, text))  # type: ignore[type-var]
    held = {each.name: getattr(thing, each.name) for each in dataclasses.fields(thing)}  # type: ignore[arg-type]
    return make(type(thing), held | {first: Registry._value(type(thing), first, text)})  # type: ignore[no-any-return]
