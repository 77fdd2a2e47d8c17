"""Functions of one kind by name: ours, those of other people's packages, and those that a text names as code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from .code import load_code, may_name_code, user_code
from .errors import InputError, UnknownNameError
from .expressions import parse, value
from .options import did_you_mean
from .plugins import load_plugins

F = TypeVar("F")


class Functions(Generic[F]):
    """Functions of one kind.

    Args:
        kind: what they are, in messages.
        ours: ours, by name.
        group: the group of entry points by which packages of other people add theirs.
    """

    def __init__(self, kind: str, ours: Mapping[str, F], group: str) -> None:
        self.kind, self.ours, self.group = kind, ours, group
        self._others: dict[str, F] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    @property
    def known(self) -> dict[str, F]:
        """All that have a name, ours first."""
        if self._others is None:
            self._others = {}
            load_plugins(self.group, self._add)
        return {**self._others, **self.ours}

    def _add(self, name: str, thing: Any) -> None:
        """Keep what a package has under a name that is free; a module has none."""
        if name in self.ours:
            raise InputError(f"there is a {self.kind} {name!r} already; give yours another name")
        if not isinstance(thing, ModuleType):
            self._others = {**(self._others or {}), name: check_callable(thing, name, self.kind)}

    def find(self, text: str) -> F:
        """What a name, `file.py:name` or `package.module:name` stands for; options of code follow in brackets."""
        if text in self.ours:
            return self.ours[text]
        if text in self.known:
            return self.known[text]
        expression = parse(text)
        name = text if may_name_code(text) else expression.name
        if not may_name_code(name):
            raise UnknownNameError(
                f"there is no {self.kind} {name!r}.{did_you_mean(name, self.known)} Known: {', '.join(self.known)}."
            )
        if expression.positional and name != text:
            raise InputError(f"{text!r}: name the options of {name}, as in {name}(option=1)")
        options = {key: value(written) for key, written in expression.named.items()}
        return bind(load_code(name, self.kind), options, name, self.kind)  # type: ignore[no-any-return]


def check_callable(thing: Any, name: str, kind: str) -> Any:
    """Give back what can be called; raise `InputError` for anything else."""
    if not callable(thing):
        raise InputError(f"{name} is no {kind}: it is a {type(thing).__name__}, but must be a function or a class")
    return thing


def bind(thing: Any, options: Mapping[str, Any], name: str, kind: str) -> Any:
    """A user's function with options, or an object of his class.

    >>> bind(round, {"ndigits": 1}, "file.py:round", "loss")(1.25)
    1.2
    """
    check_callable(thing, name, kind)
    with user_code(f"{name} cannot be used"):
        if isinstance(thing, type):
            return thing(**options)
        if options:
            inspect.signature(thing).bind_partial(**options)
            return partial(thing, **options)
    return thing


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, also of one with options bound or of an object that can be called."""
    inner = getattr(function, "function", getattr(function, "func", function))
    return str(getattr(inner, "__name__", type(inner).__name__))
