"""What may be tried: a dimension for each number among a method's options, derived from its range and default, and for
the learning rate; or what the user writes instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..contract import Method, Wrapper
from ..core.errors import InputError, UnknownNameError
from ..core.expressions import split, value, write
from ..core.options import OptionInfo, check_option, coerce, did_you_mean, make, options_of
from ..runs.settings import Config

LEARNING_RATE = "run.lr"
"""The path of the run's learning rate; a method may have an option `lr` of its own."""
FACTOR = 10.0
"""A positive number without an upper limit is tried from a tenth of its default to ten times it."""


class Dimension(NamedTuple):
    """What one option may be: a range from `low` to `high`, or some values."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.values:
            return ",".join(map(write, self.values))
        return f"{self.low:g}:{self.high:g}{':log' * self.log}"

    def contains(self, given: Any) -> bool:
        """Whether a value is among what may be tried."""
        number = isinstance(given, int | float) and not isinstance(given, bool)
        return given in self.values if self.values else number and self.low <= given <= self.high


Space = Mapping[str, Dimension]


def space_of(method: Method, lr: float = 0.05) -> dict[str, Dimension]:
    """The dimensions of a method: its options that are numbers and have their defaults, those of the method it wraps
    under `inner.`, and the learning rate around `lr`. Other options, and what the expression sets, stay as they are.

    >>> from idiolect.contract import methods
    >>> {name: str(each) for name, each in space_of(methods.build("fedlag(ditto, xi=0)")).items()}
    {'inner.lam': '0.1:10:log', 'ema': '0:0.99', 'run.lr': '0.005:0.5:log'}
    """
    return _derive_all(method) | {LEARNING_RATE: Dimension(lr / FACTOR, lr * FACTOR, log=True)}


def _derive_all(method: Method) -> dict[str, Dimension]:
    inner = _derive_all(method.inner) if isinstance(method, Wrapper) else {}
    dimensions = {f"inner.{name}": dimension for name, dimension in inner.items()}
    for name, info in options_of(type(method)).items():
        if getattr(method, name) == info.default and (dimension := derive(info)) is not None:
            dimensions[name] = dimension
    return dimensions


def derive(info: OptionInfo) -> Dimension | None:
    """The dimension of an option by its range and default; None where it is no number.

    >>> from idiolect.methods.fedprox import FedProx
    >>> derive(options_of(FedProx)["mu"])
    Dimension(low=0.01, high=1.0, log=True, whole=False, values=())
    """
    default, limits = info.default, info.limits
    if isinstance(default, bool) or not isinstance(default, int | float) or not math.isfinite(default):
        return None
    low, high = _bound(limits.min, limits.above), _bound(limits.max, limits.below)
    if isinstance(default, int) and float not in info.types:
        low = default // 2 if low is None else max(low, default // 2)
        top = max(2 * default, low + 1)
        return Dimension(low, top if high is None else min(top, high), whole=True)
    if low is not None and high is not None:
        edge = (high - low) / 100
        return Dimension(low + edge * (limits.min is None), high - edge * (limits.max is None))
    if default > 0 and (low is None or low >= 0):
        tenth = max(default / FACTOR, low or 0.0)
        return Dimension(tenth, default * FACTOR if high is None else min(high, default * FACTOR), log=True)
    reach = max(1.0, abs(default))
    return Dimension(max(low, default - reach) if low is not None else default - reach, default + reach)


def _bound(closed: float | None, opened: float | None) -> float | None:
    bound = opened if closed is None else closed
    return None if bound is None or math.isinf(bound) else bound


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """A name and a dimension: `mu=0.001:1:log`, `layers=1:3`, `estimator=paf,pc`, or one value to keep.

    >>> parse_dimension("mu=0.001:1:log"), parse_dimension("bias=follow,all_local")[1].values
    (('mu', Dimension(low=0.001, high=1, log=True, whole=False, values=())), ('follow', 'all_local'))
    """
    name, equals, given = (part.strip() for part in text.partition("="))
    wrong = f"the space {text!r} cannot be read; write NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C"
    if not (name and equals and given):
        raise InputError(wrong)
    low, *rest = given.split(":")
    if not rest:
        return name, Dimension(values=tuple(map(value, split(given))))
    ends = value(low), value(rest[0])
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in ends)
    if not numbers or len(rest) > 2 or rest[1:] not in ([], ["log"]):
        raise InputError(wrong)
    log = len(rest) == 2
    if not ends[0] < ends[1] or (log and ends[0] <= 0):
        raise InputError(f"the space {text!r} is empty; LOW must be below HIGH{' and above 0' * log}")
    return name, Dimension(*ends, log=log)


def make_spaces(methods: Mapping[str, Method], given: Sequence[str], lr: float) -> dict[str, dict[str, Dimension]]:
    """The space of every method, with what the user gives: `NAME=...` for all that have it, `METHOD.NAME=...` for one;
    `lr` is the run's learning rate, unless it is asked of a method that has its own."""
    spaces = {name: space_of(method, lr) for name, method in methods.items()}
    for text in given:
        path, dimension = parse_dimension(text)
        head, _, tail = path.partition(".")
        chosen = [name for name, method in methods.items() if method.name == head] if tail else []
        path = tail if chosen else path
        if path == "lr" and not any("lr" in paths(methods[name]) for name in chosen):
            path = LEARNING_RATE
        having = [name for name in chosen or methods if path in paths(methods[name])]
        if not having:
            known = dict.fromkeys(each for name in chosen or methods for each in paths(methods[name]))
            raise UnknownNameError(
                f"the space {text!r}: no method here has an option {path!r}.{did_you_mean(path, known)}"
                f" Options: {', '.join(known)}."
            )
        for name in having:
            spaces[name][path] = fit_dimension(methods[name], path, dimension)
    return spaces


def paths(method: Method) -> dict[str, OptionInfo]:
    """Everything that can be tuned, by its path: the learning rate, own options, those of the method it wraps."""
    inner = paths(method.inner) if isinstance(method, Wrapper) else {}
    below = {f"inner.{name}": info for name, info in inner.items() if name != LEARNING_RATE}
    return {LEARNING_RATE: options_of(Config)["lr"]} | options_of(type(method)) | below


def fit_dimension(method: Method, path: str, dimension: Dimension) -> Dimension:
    """A dimension that the user gave, of whole numbers where the option is one; its ends must be allowed."""
    info = paths(method)[path]
    for end in dimension.values or (dimension.low, dimension.high):
        check_option(method.name, info, coerce(info, end))
    whole = int in info.types and float not in info.types and not dimension.values
    return dimension._replace(whole=whole)


def set_options(method: Method, values: Mapping[str, Any]) -> Method:
    """The method with several options changed at once, by their paths; the learning rate is the run's and left out."""
    below = {path.removeprefix("inner."): each for path, each in values.items() if path.startswith("inner.")}
    changed = {path: each for path, each in values.items() if path != LEARNING_RATE and not path.startswith("inner.")}
    if isinstance(method, Wrapper) and below:
        changed["inner"] = set_options(method.inner, below)
    values_now = {each.name: getattr(method, each.name) for each in fields(method)}
    built: Method = make(type(method), values_now | changed)
    return built
