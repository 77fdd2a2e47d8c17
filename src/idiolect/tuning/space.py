"""What may be tried: a dimension for each option that its method says to search, else for each number, derived from its
range and default, and for the learning rate; as far as the model allows it; or what the user writes instead."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

from ..contract import Method, Wrapper
from ..core.errors import IdiolectError, InputError, UnknownNameError
from ..core.expressions import split, value, write
from ..core.options import OptionInfo, check_option, coerce, did_you_mean, make, options_of
from ..runs.settings import Config
from ..task.task import Task

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

    @property
    def is_choice(self) -> bool:
        """Whether there is more than one thing to try."""
        return len(self.values) > 1 if self.values else self.low < self.high

    def contains(self, choice: Any) -> bool:
        """Whether a value is among what may be tried."""
        number = isinstance(choice, int | float) and not isinstance(choice, bool)
        return choice in self.values if self.values else number and self.low <= choice <= self.high


Space = Mapping[str, Dimension]
KINDS = ("range", "rate", "never", "budget")
"""What an option's `tuned` may be that is no list or range of values."""


def space_of(method: Method, lr: float = 0.05, task: Task | None = None) -> dict[str, Dimension]:
    """The dimensions of a method: what its options say (`tuned`), or else its options that are numbers, those of what
    it wraps under `inner.`, and learning rates around `lr`. Other options, those that are given (a budget), and what
    the expression sets, stay as they are. With a `task`, choices and whole numbers that do not fit its model are left
    out.

    >>> from idiolect.contract import methods
    >>> {name: str(dimension) for name, dimension in space_of(methods.build("fedlag(ditto, xi=0)")).items()}
    {'inner.lam': '0.1:10:log', 'k': 'null,1,2,3,5', 'warmup': 'null,0,5,30', 'run.lr': '0.005:0.5:log'}
    """
    around = Dimension(lr / FACTOR, lr * FACTOR, log=True)
    space = _derive_all(method, around)
    if task is not None:
        space = {name: fit_to_model(method, name, dimension, task) for name, dimension in space.items()}
    return {name: dimension for name, dimension in space.items() if dimension.is_choice} | {LEARNING_RATE: around}


def _derive_all(method: Method, around: Dimension) -> dict[str, Dimension]:
    inner = _derive_all(method.inner, around) if isinstance(method, Wrapper) else {}
    dimensions = {f"inner.{name}": dimension for name, dimension in inner.items()}
    chosen = any(info.tuned not in KINDS for info in options_of(type(method)).values())
    for name, info in options_of(type(method)).items():
        if info.tuned in ("never", "budget") or getattr(method, name) != info.default:
            continue
        if info.tuned == "rate":
            dimensions[name] = around
        elif info.tuned != "range":
            dimensions[name] = fit_dimension(method, name, parse_dimension(f"{name}={info.tuned}")[1])
        elif not chosen and (derived := derive(info)) is not None:
            dimensions[name] = derived
    return dimensions


def fit_to_model(method: Method, path: str, dimension: Dimension, task: Task) -> Dimension:
    """A dimension without the choices, or the whole numbers at its upper end, with which the method refuses a model."""

    def fits(choice: Any) -> bool:
        with warnings.catch_warnings(), suppress(IdiolectError):
            warnings.simplefilter("ignore")
            set_options(method, {path: choice}).check(task)
            return True
        return False

    if dimension.values:
        return dimension._replace(values=tuple(choice for choice in dimension.values if fits(choice)))
    if not dimension.whole:
        return dimension
    high = next((end for end in range(int(dimension.high), int(dimension.low), -1) if fits(end)), int(dimension.low))
    return dimension._replace(high=high)


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
    name, equals, written = (part.strip() for part in text.partition("="))
    wrong = f"the space {text!r} cannot be read; write NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C"
    if not (name and equals and written):
        raise InputError(wrong)
    low, *rest = written.split(":")
    if not rest:
        return name, Dimension(values=tuple(map(value, split(written))))
    ends = value(low), value(rest[0])
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if not numbers or len(rest) > 2 or rest[1:] not in ([], ["log"]):
        raise InputError(wrong)
    log = len(rest) == 2
    if not ends[0] < ends[1] or (log and ends[0] <= 0):
        raise InputError(f"the space {text!r} is empty; LOW must be below HIGH{' and above 0' * log}")
    return name, Dimension(*ends, log=log)


def make_spaces(
    methods: Mapping[str, Method], texts: Sequence[str], lr: float, task: Task | None = None, stepwise: bool = False
) -> dict[str, dict[str, Dimension]]:
    """The space of every method, with what the user gives: `NAME=...` for all that have it, `METHOD.NAME=...` for one;
    `lr` is the run's learning rate, unless it is asked of a method that has its own. Stepwise there is nothing else,
    and in the order in which it is given."""
    spaces = {name: {} if stepwise else space_of(method, lr, task) for name, method in methods.items()}
    for text in texts:
        path, dimension = parse_dimension(text)
        if stepwise and not dimension.values:
            raise InputError(f"the space {text!r} is a range, but stepwise every value is tried; write {path}=A,B,C")
        head, _, tail = path.partition(".")
        chosen = [name for name, method in methods.items() if method.name == head] if tail else []
        path = tail if chosen else path
        if path == "lr" and not any("lr" in paths(methods[name]) for name in chosen):
            path = LEARNING_RATE
        having = [name for name in chosen or methods if path in paths(methods[name])]
        if not having:
            known = dict.fromkeys(option for name in chosen or methods for option in paths(methods[name]))
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
    below = {path.removeprefix("inner."): chosen for path, chosen in values.items() if path.startswith("inner.")}
    changed = {
        path: chosen for path, chosen in values.items() if path != LEARNING_RATE and not path.startswith("inner.")
    }
    if isinstance(method, Wrapper) and below:
        changed["inner"] = set_options(method.inner, below)
    values_now = {field.name: getattr(method, field.name) for field in fields(method)}
    built: Method = make(type(method), values_now | changed)
    return built
