"""A user's function, or class, as one of ours: its parameters are options, and what only the library knows is given to
it under the names that it asks for."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, ClassVar

from .code import user_code
from .errors import InputError
from .options import option

_PLAIN = (bool, int, float, str, tuple, list, NoneType)


class Adopted:
    """What makes a class of a function; the class is derived from this and from one that a registry knows.

    Attributes:
        function: the user's function or class.
        given: the names of parameters that are no options: the library fills them in, if the function has them.
        error: the kind of error that the function's own errors become.
    """

    name: ClassVar[str]
    function: ClassVar[Callable[..., Any]]
    given: ClassVar[tuple[str, ...]] = ()
    error: ClassVar[type[InputError]] = InputError

    def call(self, **given: Any) -> Any:
        """Call the function with the options and with those of the given values that it takes."""
        function = type(self).function
        taken = inspect.signature(function).parameters
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        with user_code(f"{self.name} failed", self.error):
            return function(**options, **{name: value for name, value in given.items() if name in taken})


def adopt(base: type, function: Callable[..., Any], name: str) -> type:
    """A class derived from `base`, which is an `Adopted`, whose options are the parameters of a function."""
    with user_code(f"the parameters of {name} cannot be read"):
        parameters = inspect.signature(function).parameters.values()
        hints = _find_hints(function)
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    chosen = [p for p in parameters if p.kind in plain and p.name not in base.given]  # type: ignore[attr-defined]
    fields = [(p.name, _type_of(p, hints), option(_default_of(p))) for p in chosen]
    doc = inspect.getdoc(function) or ""
    facts = {"name": name, "function": staticmethod(function), "__doc__": doc}
    facts |= {known: doc.partition("\n")[0].rstrip(".") for known in ("title", "summary") if hasattr(base, known)}
    facts |= {"__module__": getattr(function, "__module__", __name__)}
    label = getattr(function, "__name__", "Adopted")
    return dataclasses.make_dataclass(label, fields, bases=(base,), namespace=facts, frozen=True, kw_only=True)


def _default_of(parameter: inspect.Parameter) -> Any:
    return dataclasses.MISSING if parameter.default is inspect.Parameter.empty else parameter.default


def _find_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(vars(function).get("__init__") if isinstance(function, type) else function)
    except (NameError, TypeError, AttributeError):  # of types that are imported for type checkers only
        return {}


def _type_of(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """The type of an option: as annotated, else that of the default, where it is one that an expression can write; else
    anything goes."""
    hint = hints.get(parameter.name)
    if hint is not None and _is_plain(hint):
        return hint | None if parameter.default is None and hint is not None else hint
    kind = type(parameter.default)
    if hint is None and kind in (bool, int, float, str):
        return kind
    return object | bool


def _is_plain(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return all(map(_is_plain, typing.get_args(hint)))
    return (typing.get_origin(hint) or hint) in _PLAIN
