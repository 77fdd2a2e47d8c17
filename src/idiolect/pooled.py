"""A convolution and the maximum after it as one step. Three quarters or more of the convolution's outputs lose, so that
their gradient is zero; the library multiplies with these zeros, this does not. Needs numba, which compiles it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kernels import POOLED_ROW


def conv_pool(conv: nn.Conv2d, pool: nn.MaxPool2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The maxima of a convolution of stride one without padding.

    >>> conv, pool, x = nn.Conv2d(32, 3, 3), nn.MaxPool2d(2), torch.rand(4, 32, 8, 8)
    >>> torch.equal(conv_pool(conv, pool, x, conv.weight, conv.bias), pool(conv(x)))
    True
    """
    trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if trained and single and weight.shape[1] * weight.shape[3] >= POOLED_ROW:
        return ConvPool.apply(x, weight, bias, pool)  # type: ignore[no-any-return, no-untyped-call]
    return pool(F.conv2d(x, weight, bias))  # type: ignore[no-any-return]


class ConvPool(torch.autograd.Function):
    """The library's forward pass; gradients from the winners alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, pool: nn.MaxPool2d) -> Tensor:
        """The maxima; where they were is kept."""
        outputs = F.conv2d(x, weight, bias)
        options = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
        maxima, winners = F.max_pool2d(outputs, *options, return_indices=True)
        ctx.save_for_backward(x, weight, winners)
        ctx.shape = outputs.shape
        return maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of input, kernels and bias."""
        way = dense if torch.is_grad_enabled() else sparse  # gradients that are differentiated again are the library's
        x, weight, winners = ctx.saved_tensors
        return *way(x, weight, winners, grad, ctx.shape, ctx.needs_input_grad[:3]), None


def dense(
    x: Tensor, weight: Tensor, winners: Tensor, grad: Tensor, shape: torch.Size, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients by the library."""
    spread = grad.new_zeros(shape).flatten(2).scatter_add(2, winners.flatten(2), grad.flatten(2)).view(shape)
    given = ([shape[1]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, list(wanted))
    return tuple(torch.ops.aten.convolution_backward(spread, x, weight, *given))


def sparse(
    x: Tensor, weight: Tensor, winners: Tensor, grad: Tensor, shape: torch.Size, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients, to which each winner adds its share."""
    given = [each.detach().permute(0, 2, 3, 1).contiguous() for each in (x, weight, grad, winners)]
    to_x, to_weight, to_bias = torch.zeros_like(given[0]), torch.zeros_like(given[1]), grad.new_zeros(len(weight))
    lines = [each.view(-1).numpy() for each in (*given, to_x, to_weight, to_bias)]
    add_shares(*lines, tuple(x.shape), tuple(weight.shape), shape[3], wanted[0])
    found = (to_x.permute(0, 3, 1, 2), to_weight.permute(0, 3, 1, 2), to_bias)
    return tuple(each if want else None for each, want in zip(found, wanted, strict=True))


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """A function compiled for `add_shares`' arguments; kept for the next process where there is a place for it."""
    line, places, shape = "f4[::1]", "i8[::1]", "UniTuple(i8, 4)"
    types = f"void({line}, {line}, {line}, {places}, {line}, {line}, {line}, {shape}, {shape}, i8, b1)"
    fused = {"contract"}  # products and sums in one instruction, and nothing that would lose a NaN
    try:
        return numba.njit(types, cache=True, fastmath=fused, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write
        return numba.njit(types, fastmath=fused, error_model="numpy")(function)


@compiled
def add_shares(
    x: Any, weight: Any, grad: Any, winners: Any, to_x: Any, to_weight: Any, to_bias: Any,
    size: Any, kernel: Any, columns: int, through: bool,
) -> None:  # fmt: skip
    """Every winner's share of the gradients, channels last: its patch times its slope to its kernel's and, if this goes
    `through` to the input, its kernel times its slope to its patch's."""
    (samples, channels, high, wide), (outputs, _, height, width) = size, kernel
    row, windows = width * channels, len(grad) // max(1, samples * outputs)
    for sample in range(samples):
        for output in range(outputs):
            for window in range(windows):
                at = (sample * windows + window) * outputs + output
                slope = grad[at]
                if slope != 0:
                    to_bias[output] += slope
                    down, right = winners[at] // columns, winners[at] % columns
                    for line in range(height):
                        first = ((sample * high + down + line) * wide + right) * channels
                        here = (output * height + line) * row
                        patch, to_kernel = x[first : first + row], to_weight[here : here + row]
                        for each in range(row):
                            to_kernel[each] += slope * patch[each]
                        if through:
                            kernels, to_patch = weight[here : here + row], to_x[first : first + row]
                            for each in range(row):
                                to_patch[each] += slope * kernels[each]
