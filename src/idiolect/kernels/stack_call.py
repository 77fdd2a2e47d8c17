"""From the one client that `torch.func.vmap` traces to the stack of all clients, which compiled code works on.

The public way is an `autograd.Function` with a `vmap` rule. It spends 0.15 to 0.3 ms per call in Python, a fifth of a
training step of four small networks; functions of PyTorch that are not public do the same in 0.02 ms. They are used
where this version of PyTorch has them, and nowhere else in the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

StackFunction = Callable[..., Sequence[Tensor]]
_NAMES = ("_add_batch_dim", "get_unwrapped", "is_batchedtensor", "maybe_get_bdim", "maybe_get_level")

functorch: Any = getattr(torch._C, "_functorch", None)
functorch = functorch if all(hasattr(functorch, name) for name in _NAMES) else None


def call_on_stack(function: StackFunction, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call a function of stacks, [clients, ...], with the leaves of one client or of the clients that are traced as
    one. Its results are those of that client."""
    if functorch is None:
        return StackCall.apply(function, *leaves)  # type: ignore[no-any-return, no-untyped-call]
    levels = [functorch.maybe_get_level(leaf) if functorch.is_batchedtensor(leaf) else -1 for leaf in leaves]
    level = max(levels)
    if level < 0:
        return _call_on_one(function, *leaves)
    traced = leaves[levels.index(level)]
    clients = functorch.get_unwrapped(traced).shape[functorch.maybe_get_bdim(traced)]
    stacks = (
        functorch.get_unwrapped(leaf).movedim(functorch.maybe_get_bdim(leaf), 0)
        if leaf_level == level
        else leaf.expand(clients, *leaf.shape)
        for leaf, leaf_level in zip(leaves, levels, strict=True)
    )
    return tuple(functorch._add_batch_dim(leaf, 0, level) for leaf in function(*stacks))


def _call_on_one(function: StackFunction, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Call a function of stacks with one client."""
    return tuple(leaf[0] for leaf in function(*(leaf[None] for leaf in leaves)))


_call_on_one.__signature__ = signature(_call_on_one)  # type: ignore[attr-defined]  # PyTorch asks for it in every call


class StackCall(torch.autograd.Function):
    """`call_on_stack` by PyTorch's public functions."""

    forward = staticmethod(_call_on_one)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is saved: nothing is differentiated through this."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: StackFunction, *leaves: Tensor) -> tuple[tuple[Tensor, ...], int]:
        """Call the function with the stacks of all traced clients."""
        clients = info.batch_size
        stacks = (
            leaf.expand(clients, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
            for leaf, axis in zip(leaves, in_dims[1:], strict=True)
        )
        return tuple(function(*stacks)), 0
