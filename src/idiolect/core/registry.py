"""Registries: name -> class, for methods, data sources, partitions, networks and engines, built from expressions."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Generic, TypeVar

from .adopted import adopt
from .code import load_code, may_name_code
from .errors import InputError, UnknownNameError
from .expressions import Expression, names_code, parse, split, unquote, value, write
from .options import did_you_mean, make, options_of
from .plugins import load_plugins

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes of one kind by name and alias, built from expressions.

    Args:
        kind: what the classes are, in messages.
        base: what a class in a user's file must be derived from.
        home: the package whose import fills the registry, which happens at the first look into it.
        group: the group of entry points by which packages of other people add theirs.
        adopted: what makes a class of a user's function (`core.adopted`); without it only classes are taken.
    """

    def __init__(
        self, kind: str, base: type | None = None, home: str = "", group: str = "", adopted: type | None = None
    ) -> None:
        self.kind = kind
        self.base = base
        self.home = home
        self.group = group
        self.adopted = adopted
        self._classes: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}
        self._own: dict[tuple[str, int], type[T]] = {}

    def register(self, name: str, *aliases: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: enter the class under `name` and `aliases`."""

        def enter(cls: type[T]) -> type[T]:
            self._load_home()
            known = self._find(name) or cls
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

    def _load_home(self) -> None:
        home, self.home = self.home, ""
        if home:
            importlib.import_module(home)

    def _fill(self) -> None:
        self._load_home()
        group, self.group = self.group, ""
        if group:
            load_plugins(group, self._add)

    def _add(self, name: str, thing: Any) -> None:
        """Register what a package has, unless its module has done so."""
        if not isinstance(thing, ModuleType) and name_of_registered(thing) != name:
            self.register(name)(self.take(thing, name))

    def _find(self, name: str) -> type[T] | None:
        """The class under a name or alias, in which case, hyphens and underscores do not matter."""
        known = {**{key: key for key in self._classes}, **self._aliases}
        return next((self._classes[known[key]] for key in known if plain_name(key) == plain_name(name)), None)

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(sorted(self._classes))

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._classes or name in self._aliases

    def get(self, name: str) -> type[T]:
        """The class registered under `name`, or that of `path/to/file.py:Name` or `package.module:Name`."""
        self._fill()
        if known := self._find(name):
            return known
        if may_name_code(name):
            return self.take(load_code(name, self.kind), name)
        if name.endswith(".py"):
            raise UnknownNameError(f"{name!r}: which class of that file? Write {name}:Class")
        near = did_you_mean(name.lower(), (*self._classes, *self._aliases))
        raise UnknownNameError(f"there is no {self.kind} {name!r}.{near} Known: {', '.join(self)}.")

    def take(self, thing: Any, name: str) -> type[T]:
        """A user's class, or his function as a class, under the name that he gives it."""
        if isinstance(thing, type) and self.base and issubclass(thing, self.base):
            taken: type[T] = thing  # type: ignore[assignment]
            taken.name = name  # type: ignore[attr-defined]
            return taken
        if self.adopted is None or not callable(thing):
            wanted = f"a class derived from {self.base.__name__}" if self.base else "a class"
            raise UnknownNameError(
                f"{name} is no {self.kind}: it is {_describe_thing(thing)}, but must be {wanted}"
                + (" or a function" if self.adopted else "")
            )
        key = (name, id(thing))  # kept by the class, so that no other thing gets its number
        if key not in self._own:
            self._own[key] = adopt(self.adopted, thing, name)
        return self._own[key]

    def build(self, text: str | T, cls: type[T] | None = None) -> T:
        """Build what an expression describes, of the class that its name says or of `cls`; anything but a string is
        returned as it is."""
        if not isinstance(text, str):
            return text
        expression = self._parse(text)
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

    def _parse(self, text: str) -> Expression:
        """Read an expression; `module:name` is code where `module` is no name of ours."""
        expression = parse(text)
        if may_name_code(text.strip()) and not names_code(text.strip()) and expression.name not in self:
            return Expression(text.strip(), (), {})
        return expression

    @staticmethod
    def _value(cls: type, name: str, text: str) -> Any:
        info = options_of(cls).get(name)
        return unquote(text.strip()) if info and info.types == (str,) else value(text)

    def split_and_build(self, text: str) -> list[T]:
        """Build every expression of a list that is split at commas outside brackets."""
        return [self.build(part) for part in split(text)]


def plain_name(name: str) -> str:
    """A name without what does not matter in it."""
    return name.lower().replace("-", "").replace("_", "")


def is_importable(cls: type) -> bool:
    """Whether a class is of a package, and not of a script or of a file that was named by its path."""
    return cls.__module__ != "__main__" and " in " not in cls.__module__


def name_of_registered(thing: Any) -> str | None:
    """The name under which a class was registered when its module was imported."""
    return vars(thing).get("name") if isinstance(thing, type) else None


def _describe_thing(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"


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
