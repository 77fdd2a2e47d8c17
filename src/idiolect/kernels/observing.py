"""What a module computes for an example, to see that a rearranged one computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn


def observe(module: nn.Module, x: Tensor) -> list[Tensor | None]:
    """Outputs, gradients and buffers for an example, in training and in evaluation, with and without gradients. Random
    layers draw the same numbers every time; buffers are put back."""
    buffers, seen = list(module.buffers()), list[Tensor | None]()
    start = [leaf.clone() for leaf in buffers]
    leaves = [leaf.requires_grad_() for leaf in module.parameters() if leaf.is_floating_point()]
    for training, differentiate in product((True, False), (True, False)):
        module.train(training)
        given = x.clone().requires_grad_(differentiate and x.is_floating_point())
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(differentiate):
            torch.manual_seed(0)
            outputs = module(given.clone())
        seen.append(outputs.detach())
        if outputs.requires_grad:
            inputs = [*leaves, given] if given.requires_grad else leaves
            weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
            seen += torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
        seen += [leaf.clone() for leaf in buffers]
        for leaf, value in zip(buffers, start, strict=True):
            leaf.copy_(value)
    for leaf in leaves:
        leaf.requires_grad_(False)
    return seen


def agree(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Whether two observations are equal up to rounding.

    >>> agree([torch.tensor([1.0, 2.0]), None], [torch.tensor([1.0, 2.00001]), None])
    True
    >>> agree([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.1])])
    False
    """
    return len(some) == len(others) and all(map(_close, some, others))


def _close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    scale = float(one.detach().abs().nan_to_num().max()) if one.is_floating_point() and one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=1e-4 * scale, equal_nan=True)
