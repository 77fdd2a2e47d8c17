"""Registries: name -> class, for methods, data sources, partitions, networks and engines, built from expressions."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from .errors import InputError, UnknownNameError
from .expressions import parse, split, unquote, value, write
from .options import did_you_mean, make, options_of

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes of one kind by name and alias, built from expressions.

    Args:
        kind: what the classes are, in messages.
        base: what a class in a user's file must be derived from.
        home: the package whose import fills the registry, which happens at the first look into it. Packages of other
            people name theirs as an entry point of a group with the same name.
    """

    def __init__(self, kind: str, base: type | None = None, home: str = "") -> None:
        self.kind = kind
        self.base = base
        self.home = home
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

    def _fill(self) -> None:
        home, self.home = self.home, ""
        if home:
            importlib.import_module(home)
            for each in importlib.metadata.entry_points(group=home):
                each.load()

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(sorted(self._classes))

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._classes or name in self._aliases

    def get(self, name: str) -> type[T]:
        """The class registered under `name`, or of `path/to/file.py:Class`."""
        if ".py:" in name:
            return self._from_file(name)
        self._fill()
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
        return unquote(text.strip()) if info and info.types == (str,) else value(text)

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


def override(thing: T, path: str, text: str) -> T:
    """A copy with one option changed: `override(method, "inner.lam", "0.5")`."""
    first, _, rest = path.partition(".")
    if rest:
        if first != "inner" or not hasattr(thing, "inner"):
            raise UnknownNameError(f"{type(thing).name!r} wraps nothing, so {path!r} names no option of it")  # type: ignore[attr-defined]
        return dataclasses.replace(thing, inner=override(thing.inner, rest, text))  # type: ignore[type-var]
    held = {each.name: getattr(thing, each.name) for each in dataclasses.fields(thing)}  # type: ignore[arg-type]
    return make(type(thing), held | {first: Registry._value(type(thing), first, text)})  # type: ignore[no-any-return]
