"""Tensors without values: they know their shape and, as long as a method only adds them and multiplies them by numbers,
what they are a sum of. A method's step that is carried out on them says what it makes of parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

Terms = dict[Any, Any]
"""What a tensor is the sum of: factors (numbers, or tensors of one) by the names of what they multiply."""


class Symbol(Tensor):
    """A tensor whose values are not known.

    Attributes:
        bare: an empty tensor of its shape.
        terms: what it is the sum of, if it is a sum.
        needs: the names of all that it depends on.

    >>> w, g = make_symbol(torch.ones(2), {"w": 1.0}, {"w"}), make_symbol(torch.ones(2), {"g": 1.0}, {"g"})
    >>> (0.5 * (w - 4 * g) + w).terms
    {'w': 1.5, 'g': -2.0}
    >>> (w * g).terms, sorted((w * g).needs), (w @ g).shape
    (None, ['g', 'w'], torch.Size([]))
    """

    bare: Tensor
    terms: Terms | None
    needs: frozenset[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The sum that a function gives or, where it is none, what it depends on."""
        name = func.__name__
        if name == "__get__":  # a property, such as the shape
            return func(args[0].bare)
        rule = RULES.get(name)
        found = None if rule is None else rule(*args, **(kwargs or {}))
        return compute_unknown(func, args, kwargs or {}) if found is None else found


def make_symbol(like: Tensor, terms: Terms | None, needs: Iterable[str]) -> Symbol:
    """A symbol of the shape of a tensor."""
    bare = like.bare if isinstance(like, Symbol) else make_empty(like.shape, like.dtype)
    made = bare.as_subclass(Symbol)
    made.bare, made.terms, made.needs = bare, terms, frozenset(needs)
    return made


@lru_cache(4096)
def make_empty(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")


class Given(NamedTuple):
    """An argument that is a tensor, of which only this matters for the shape of what comes out."""

    shape: torch.Size
    dtype: torch.dtype


class Number(NamedTuple):
    """An argument that is a number. Its type decides that of what comes out, but to Python 2 and 2.0 are one key."""

    kind: type
    value: float


def compute_unknown(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What a function gives, of which no more is known than shapes and what it depends on."""
    needs = set[str]()

    def describe(leaf: Any) -> Any:
        if isinstance(leaf, Symbol):
            needs.update(leaf.needs)
            leaf = leaf.bare
        if isinstance(leaf, Tensor):
            return Given(leaf.shape, leaf.dtype)
        return Number(type(leaf), leaf) if isinstance(leaf, bool | int | float) else leaf

    given = map_nested(describe, list(args)), map_nested(describe, list(kwargs.items()))
    result = compute_shapes(func, *given)
    if func.__name__.endswith("_") and not func.__name__.startswith("_"):  # in place
        if not isinstance(args[0], Symbol):
            raise TypeError(f"{func.__name__} writes what is not known into a tensor")
        if (result.shape, result.dtype) != (args[0].bare.shape, args[0].bare.dtype):
            raise TypeError(f"{func.__name__} changes the shape of a tensor in place")
        args[0].terms, args[0].needs = None, args[0].needs | needs
        return args[0]
    return map_nested(lambda leaf: make_symbol(leaf, None, needs) if isinstance(leaf, Tensor) else leaf, result)


@lru_cache(4096)
def compute_shapes(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function gives for tensors without values, which are its own: it may change their shapes in place."""

    def make(leaf: Any) -> Any:
        if isinstance(leaf, Given):
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        return leaf.value if isinstance(leaf, Number) else leaf

    empty = partial(map_nested, make)
    return func(*empty(args), **dict(empty(kwargs)))


def map_nested(fn: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all that tuples and lists hold, which become tuples."""
    return tuple(map_nested(fn, part) for part in value) if type(value) in (tuple, list) else fn(value)


def is_factor(value: Any) -> bool:
    """Whether something known multiplies all numbers of a tensor alike."""
    if isinstance(value, Tensor):
        return not isinstance(value, Symbol) and value.ndim == 0
    return isinstance(value, int | float)


def multiply(a: Any, b: Any) -> Symbol | None:
    """A sum times a factor."""
    if is_factor(a):
        a, b = b, a
    if not isinstance(a, Symbol) or a.terms is None or not is_factor(b):
        return None
    return make_symbol(a, {name: factor * b for name, factor in a.terms.items()}, a.needs)


def divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Symbol | None:
    """A sum divided by a factor."""
    return multiply(a, 1 / b) if is_factor(b) and rounding_mode is None else None


def add(a: Any, b: Any, *, alpha: float = 1) -> Symbol | None:
    """A sum plus `alpha` times another of the same shape."""
    parts = (a, b)
    if not all(isinstance(part, Symbol) and part.terms is not None for part in parts) or a.bare.shape != b.bare.shape:
        return None
    terms = dict(a.terms)
    for name, factor in b.terms.items():
        terms[name] = terms[name] + factor * alpha if name in terms else factor * alpha
    return make_symbol(a, terms, a.needs | b.needs)


def subtract(a: Any, b: Any, *, alpha: float = 1) -> Symbol | None:
    """A sum minus `alpha` times another."""
    return add(a, b, alpha=-alpha)


def no_terms(a: Any, **facts: Any) -> Symbol | None:
    """Zeros in the shape of a sum."""
    return None if facts else make_symbol(a, {}, ())


def itself(a: Any) -> Symbol:
    """The same numbers."""
    return make_symbol(a, a.terms, a.needs)


RULES: dict[str, Callable[..., Symbol | None]] = {
    **dict.fromkeys(("add", "__add__", "__radd__"), add),
    **dict.fromkeys(("sub", "subtract", "__sub__"), subtract),
    **dict.fromkeys(("rsub", "__rsub__"), lambda a, b, *, alpha=1: subtract(b, a, alpha=alpha)),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), divide),
    **dict.fromkeys(("neg", "negative", "__neg__"), lambda a: multiply(a, -1.0)),
    "zeros_like": no_terms,
    **dict.fromkeys(("detach", "clone"), lambda a, **_: itself(a)),
}
