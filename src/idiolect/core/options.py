"""Options: dataclass fields with a range and a help text, from which the command line, the
configuration file, validation and the documentation all derive."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .errors import OptionError, UnknownNameError
from .names import visible

LARGEST = sys.float_info.max
"""The largest number."""


@dataclass(frozen=True)
class Limits:
    """What a value may be: `min`/`max` are allowed themselves, `above`/`below` are not. No number is infinite unless
    `min` or `max` is."""

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    help: str = ""

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        low = f"[{self.min:g}" if self.min is not None else f"({self.above:g}" if self.above is not None else ""
        if self.max == 2**63 - 1:
            return f"{low or '(-inf'}, 2^63)"
        high = f"{self.max:g}]" if self.max is not None else f"{self.below:g})" if self.below is not None else ""
        return f"{low or '(-inf'}, {high or 'inf)'}" if low or high else ""

    def allow(self, value: Any) -> bool:
        """Whether `value` (a number, a word, or a sequence of them) lies within the limits."""
        if value is None:
            return True
        if isinstance(value, list | tuple):
            return all(self.allow(item) for item in value)
        if self.choices:
            return value in self.choices
        if isinstance(value, int | float) and not isinstance(value, bool):
            return not (
                value != value
                or (abs(value) > LARGEST and value not in (self.min, self.max))
                or (self.min is not None and value < self.min)
                or (self.max is not None and value > self.max)
                or (self.above is not None and value <= self.above)
                or (self.below is not None and value >= self.below)
            )
        return True


def option(
    default: Any = dataclasses.MISSING,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[Any] = (),
    tuned: str = "range",
    help: str = "",
) -> Any:
    """A dataclass field that is an option: a default, a range and a help text.

    `tuned` says what tuning tries: values of its `range`; values around the run's learning rate, where it is a `rate`
    for which none is the run's; the values that are written there (`0.1:10:log`, `1,2,3`), and then no other option's
    of the class that says nothing; `never` any but the given one; or none because it is the clients' `budget`.

    >>> @dataclass(frozen=True)
    ... class Prox(Options):
    ...     mu: float = option(0.1, min=0.0, help="weight of the proximal term")
    >>> Prox(mu=-1)
    Traceback (most recent call last):
    ...
    idiolect.core.errors.OptionError: prox: mu=-1 is not allowed; mu must lie in [0, inf)
    """
    limits = Limits(min, max, above, below, tuple(choices), help)
    metadata = {"option": limits, "tuned": tuned}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


PLAIN = {bool, int, float, str, types.NoneType}
"""What plain fields of a dataclass hold that are options without being declared as such."""


@dataclass(frozen=True)
class OptionInfo:
    """One option as the command line and the documentation show it."""

    name: str
    default: Any
    limits: Limits
    types: tuple[type, ...]
    items: tuple[type, ...] = ()
    """What a list holds; empty if that is open."""
    tuned: str = "range"
    """What tuning tries."""

    @property
    def kind(self) -> str:
        """The option's type in words."""
        names = {
            bool: "true/false",
            int: "whole number",
            float: "number",
            str: "text",
            tuple: "list",
            Mapping: "mapping",
            object: "value",
        }
        inside = " or ".join(f"{names[item]}s" for item in self.items if item in names)
        names[tuple] = f"list of {inside}" if inside else "list"
        return " or ".join(names.get(kind, "none") for kind in self.types)


def options_of(cls: type) -> dict[str, OptionInfo]:
    """The options of a class, by name, in the order in which they are declared."""
    return _read_options(cls)


@cache
def _read_options(cls: type) -> dict[str, OptionInfo]:
    hints = typing.get_type_hints(cls)
    kinds = {field.name: _plain_types(hints[field.name]) for field in dataclasses.fields(cls) if field.init}
    return {
        field.name: OptionInfo(
            field.name,
            None if field.default is dataclasses.MISSING else field.default,
            field.metadata.get("option", Limits()),
            kinds[field.name],
            _item_types(hints[field.name]),
            field.metadata.get("tuned", "never"),
        )
        for field in dataclasses.fields(cls)
        if "option" in field.metadata or (field.init and PLAIN.issuperset(kinds[field.name]))
    }


def _plain_types(hint: Any) -> tuple[type, ...]:
    """The classes a type hint admits: `float | None` -> (float, NoneType), `tuple[int, ...]` -> (tuple,)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(plain for part in typing.get_args(hint) for plain in _plain_types(part))
    if typing.get_origin(hint) is typing.Literal:
        return (str,)
    origin = typing.get_origin(hint) or hint
    return (tuple,) if origin is list else (origin,) if isinstance(origin, type) else (str,)


def _item_types(hint: Any) -> tuple[type, ...]:
    """The classes that a list holds: `tuple[float, ...] | None` -> (float,); none if it may hold anything."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(item for part in typing.get_args(hint) for item in _item_types(part))
    parts = typing.get_args(hint) if typing.get_origin(hint) in (tuple, list) else ()
    items = tuple(item for part in parts if part is not Ellipsis for item in _plain_types(part))
    return () if typing.Any in items else items


@dataclass(frozen=True)
class Options:
    """A frozen dataclass whose fields are options and are checked when it is built."""

    def __post_init__(self) -> None:
        for name, info in options_of(type(self)).items():
            check_option(label(type(self)), info, getattr(self, name))


def label(cls: type) -> str:
    """The name under which a class is registered, else its own name in small letters."""
    return str(cls.__dict__.get("name") or cls.__name__.lower())


def check_option(owner: str, info: OptionInfo, value: Any) -> None:
    """Raise `OptionError` unless `value` is of the option's kind and within its limits."""
    items = value if isinstance(value, list | tuple) and info.items else ()
    if not _is_kind(value, info.types) or not all(_is_kind(item, info.items) for item in items):
        raise OptionError(f"{owner}: {info.name}={value!r} is not allowed; {info.name} must be a {info.kind}")
    if not info.limits.allow(value):
        where = f"must be {info.limits}" if info.limits.choices else f"must lie in {str(info.limits) or '(-inf, inf)'}"
        raise OptionError(f"{owner}: {info.name}={value!r} is not allowed; {info.name} {where}")


def _is_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these classes; a whole number is a number, and true is neither."""
    allowed = kinds + ((int,) if float in kinds else ()) + ((list,) if tuple in kinds else ())
    return isinstance(value, allowed) and (not isinstance(value, bool) or bool in kinds)


def coerce(info: OptionInfo, value: Any) -> Any:
    """A value as YAML reads it, in the type the option stores: lists become tuples, 1 becomes 1.0, and the word none is
    nothing where no text is allowed."""
    if isinstance(value, list):
        return tuple(float(v) if float in info.items and type(v) is int and abs(v) <= LARGEST else v for v in value)
    if type(value) is int and abs(value) <= LARGEST and float in info.types and int not in info.types:
        return float(value)
    if isinstance(value, str) and str not in info.types and value.lstrip("+-").lower() in ("inf", "infinity"):
        return float(value)
    if isinstance(value, str) and value.lower() == "none" and types.NoneType in info.types and str not in info.types:
        return None
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known names, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(visible, near))}?" if near else ""


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def make(cls: type, values: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """Build `cls` from plain values; `preset` names a set of options that explicit ones override."""
    values, known = dict(values), options_of(cls)
    if presets and "preset" in values:
        chosen = values.pop("preset")
        if chosen not in presets:
            raise OptionError(
                f"{label(cls)}: preset={chosen!r} is not allowed; preset must be one of {', '.join(presets)}"
            )
        values = dict(presets[chosen]) | values
    fields = {field.name for field in dataclasses.fields(cls)}
    for name in values:
        if name not in fields:
            listing = ", ".join(known) or "none"
            raise UnknownNameError(
                f"{label(cls)} has no option {name!r}.{did_you_mean(name, fields)} Its options: {listing}."
            )
    required = [field.name for field in dataclasses.fields(cls) if _is_required(field)]
    if missing := [name for name in required if name not in values]:
        name, listing = label(cls), ", ".join(f"{name}=..." for name in missing)
        raise OptionError(f"{name} needs the option {missing[0]!r}; write {name}({listing})")
    return cls(**{n: coerce(known[n], v) if n in known else v for n, v in values.items()})
