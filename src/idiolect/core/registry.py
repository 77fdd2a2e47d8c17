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

from .errors import InputError, UnknownNameError, UntrustedCodeError
from .expressions import parse, split, unquote, value, write
from .imports import checked_imports
from .options import did_you_mean, make, options_of
from .trust import read_code

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
            self._fill()
            known = self._classes.get(name, cls)
            if known.__module__ != cls.__module__ and is_importable(known):
                raise InputError(
                    f"{cls.__module__}: there is a {self.kind} {name!r} already, in {known.__module__}; register"
                    f" {cls.__name__} under another name, or leave @register out and write file.py:{cls.__name__}"
                )
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            self._aliases.update(dict.fromkeys(aliases, name))
            return cls

        return enter

    def _fill(self) -> None:
        home, self.home = self.home, ""
        if home:
            importlib.import_module(home)
            for entry in importlib.metadata.entry_points(group=home):
                entry.load()

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
        plain = {known.replace("-", "").replace("_", ""): known for known in (*self._classes, *self._aliases)}
        if key not in plain:
            if name.endswith(".py"):
                raise UnknownNameError(f"{name!r}: which class of that file? Write {name}:Class")
            raise UnknownNameError(
                f"there is no {self.kind} {name!r}.{did_you_mean(name.lower(), plain.values())}"
                f" Known: {', '.join(self)}."
            )
        canonical = plain[key]
        return self._classes[self._aliases.get(canonical, canonical)]

    def _from_file(self, name: str) -> type[T]:
        path, _, attribute = name.rpartition(":")
        if not Path(path).is_file():
            raise UnknownNameError(f"{name!r}: there is no file {path!r}; write path/to/file.py:Class")
        content = read_code(Path(path), name)
        with checked_imports(name):
            module = _module(Path(path).resolve(), content)
        cls = getattr(module, attribute, None)
        if not isinstance(cls, type) or (self.base and not issubclass(cls, self.base)):
            there = [n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, self.base or object)]
            raise UnknownNameError(
                f"{path} has no class {attribute!r} that is a {self.kind}.{did_you_mean(attribute, there)}"
            )
        cls.name = name  # type: ignore[attr-defined]
        return cls

    def build(self, text: str | T, cls: type[T] | None = None) -> T:
        """Build what an expression describes, of the class that its name says or of `cls`; anything but a string is
        returned as it is."""
        if not isinstance(text, str):
            return text
        expression = parse(text)
        cls = cls or self.get(expression.name)
        known = list(options_of(cls))
        inner = any(field.name == "inner" for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        places = (["inner"] if inner else []) + known
        if len(expression.positional) > len(places):
            raise InputError(
                f"{text!r}: {expression.name} takes at most {len(places)} values without a name"
                f" ({', '.join(places) or 'none'}), not {len(expression.positional)}"
            )
        positional = dict(zip(places, expression.positional, strict=False))
        if both := positional.keys() & expression.named.keys():
            raise InputError(f"{text!r}: {both.pop()!r} is given twice")
        raw = positional | expression.named
        values = {n: self.build(v) if n == "inner" and inner else self._value(cls, n, v) for n, v in raw.items()}
        return make(cls, values, getattr(cls, "presets", None))  # type: ignore[no-any-return]

    @staticmethod
    def _value(cls: type, name: str, text: str) -> Any:
        info = options_of(cls).get(name)
        return unquote(text.strip()) if info and info.types == (str,) else value(text)

    def split_and_build(self, text: str) -> list[T]:
        """Build every expression of a list that is split at commas outside brackets."""
        return [self.build(part) for part in split(text)]


def is_importable(cls: type) -> bool:
    """Whether a class is of a package, and not of a script or of a file that was named by its path."""
    return cls.__module__ != "__main__" and " in " not in cls.__module__


@cache
def _module(path: Path, content: bytes) -> ModuleType:
    """The module in a file, run once for every content of it, so that its classes are the same ones each time. What
    runs is this content, and nothing that was compiled before."""
    spec = importlib.util.spec_from_file_location(f"{path.stem} in {path.parent}", path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    except UntrustedCodeError:
        raise
    except Exception as error:
        raise InputError(f"the code in {path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def describe(thing: Any) -> str:
    """The shortest expression that builds `thing`: the inverse of `Registry.build`."""
    parts = []
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if field.name == "inner":
            parts.append(describe(value))
        elif field.name in options_of(type(thing)) and value != options_of(type(thing))[field.name].default:
            parts.append(f"{field.name}={write(value)}")
    name = type(thing).name
    return f"{name}({', '.join(parts)})" if parts else name


def override(thing: T, path: str, text: str) -> T:
    """A copy with one option changed: `override(method, "inner.lam", "0.5")`."""
    first, _, rest = path.partition(".")
    if rest:
        if first != "inner" or not hasattr(thing, "inner"):
            raise UnknownNameError(f"{type(thing).name!r} wraps nothing, so {path!r} names no option of it")  # type: ignore[attr-defined]
        return dataclasses.replace(thing, inner=override(thing.inner, rest, text))  # type: ignore[type-var]
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}  # type: ignore[arg-type]
    return make(type(thing), values | {first: Registry._value(type(thing), first, text)})  # type: ignore[no-any-return]
