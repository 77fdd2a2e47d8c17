"""A convolution and the maximum after it as one step. Three quarters or more of the convolution's outputs lose, so that
their gradient is zero; the library multiplies with these zeros, this does not. Needs numba, which compiles it once.
Passes without gradient have a way of their own (`winograd.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .vectors import LANES, SUMS, WIDTH, Code, block, kept
from .winograd import conv_max, suits


def conv_pool(conv: nn.Conv2d, pool: nn.MaxPool2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The maxima of a convolution of stride one.

    >>> conv, pool, x = nn.Conv2d(32, 3, 3, padding=1), nn.MaxPool2d(2), torch.rand(4, 32, 8, 8)
    >>> torch.equal(conv_pool(conv, pool, x, conv.weight, conv.bias), pool(conv(x)))
    True
    """
    wanted = [torch.is_grad_enabled() and leaf is not None and leaf.requires_grad for leaf in (x, weight, bias)]
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    padding: Any = conv.padding
    if single and any(wanted[:2]):
        return ConvPool.apply(x, weight, bias, padding, pool)  # type: ignore[no-any-return, no-untyped-call]
    if single and not any(wanted) and suits(x, weight, bias, padding, pool):
        return conv_max(x, weight, bias, padding)
    return pool(F.conv2d(x, weight, bias, padding=padding))  # type: ignore[no-any-return]


class ConvPool(torch.autograd.Function):
    """The library's forward pass; gradients from the winners alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], pool: nn.MaxPool2d
    ) -> Tensor:
        """The maxima; where they were is kept."""
        outputs = F.conv2d(x, weight, bias, padding=padding)
        options = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
        maxima, winners = F.max_pool2d(outputs, *options, return_indices=True)
        ctx.save_for_backward(x, weight, winners)
        ctx.shape, ctx.padding = outputs.shape, padding
        return maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of input, kernels and bias."""
        way = dense if torch.is_grad_enabled() else sparse  # gradients that are differentiated again are the library's
        x, weight, winners = ctx.saved_tensors
        return *way(x, weight, winners, grad, ctx.shape, ctx.padding, ctx.needs_input_grad[:3]), None, None


Gradients = tuple[Tensor | None, ...]


def dense(
    x: Tensor, weight: Tensor, winners: Tensor, grad: Tensor, shape: torch.Size, padding: Sequence[int],
    wanted: Sequence[bool],
) -> Gradients:  # fmt: skip
    """The gradients by the library."""
    spread = grad.new_zeros(shape).flatten(2).scatter_add(2, winners.flatten(2), grad.flatten(2)).view(shape)
    given = ([shape[1]], [1, 1], list(padding), [1, 1], False, [0, 0], 1, list(wanted))
    return tuple(torch.ops.aten.convolution_backward(spread, x, weight, *given))


def sparse(
    x: Tensor, weight: Tensor, winners: Tensor, grad: Tensor, shape: torch.Size, padding: Sequence[int],
    wanted: Sequence[bool],
) -> Gradients:  # fmt: skip
    """The gradients, to which each winner adds its share. Kernel rows are made as long as blocks of vectors are: what
    is added in the end belongs to nobody."""
    (outputs, channels, height, width), (high, wide) = weight.shape, padding
    images = padded(x, wide, wide, high, high)
    images, kernels, slopes, places = (each.detach().permute(0, 2, 3, 1) for each in (images, weight, grad, winners))
    lines, vectors = block_of(height, width * channels)
    extra = -width * channels % (vectors * LANES)
    flat, kernels = padded(images.flatten(), 0, extra), padded(kernels.flatten(2), 0, extra)
    to_flat, to_kernels = torch.zeros(flat.shape), torch.zeros(kernels.shape)
    row, line = kernels.shape[2], images.shape[2] * channels
    patch_at = torch.arange(shape[2])[:, None] * line + torch.arange(shape[3]) * channels
    kernel_at = torch.arange(outputs) * height * row
    given = (flat, kernels, slopes, places, to_flat, to_kernels, patch_at, kernel_at)
    arrays = [each.flatten().numpy() for each in given]
    compiled(lines, vectors)(*arrays, len(images), images[:1].numel(), line, height, row, wanted[0])
    to_images = to_flat[: images.numel()].view(images.shape).permute(0, 3, 1, 2)
    to_x = to_images[:, :, high : high + x.shape[2], wide : wide + x.shape[3]]
    to_weight = to_kernels[:, :, : width * channels].view(outputs, height, width, channels).permute(0, 3, 1, 2)
    found = (to_x, to_weight, grad.sum((0, 2, 3)))
    return tuple(each if want else None for each, want in zip(found, wanted, strict=True))


def padded(leaf: Tensor, *before_and_after: int) -> Tensor:
    """Zeros around a leaf; itself if there are none to add."""
    return F.pad(leaf, before_and_after) if any(before_and_after) else leaf


def block_of(height: int, row: int, lanes: int = LANES, sums: int = SUMS) -> tuple[int, int]:
    """Lines and vectors of the blocks into which kernels of some rows are cut, so that sums stay in registers: the
    whole kernel if it fits, or equal parts of one row.

    >>> [block_of(height, row, lanes=8, sums=12) for height, row in ((5, 15), (5, 160), (3, 200))]
    [(5, 2), (1, 10), (1, 9)]
    """
    vectors = -(-row // lanes)
    if height * vectors <= sums:
        return height, vectors
    return 1, -(-vectors // -(-vectors // sums))


@block
def add_weighted(
    code: Code, to: Any, at: Any, to_line: Any, source: Any, start: Any, line: Any, places: Any, weights: Any,
    first: Any, end: Any, lines: Any, vectors: Any,
) -> None:  # fmt: skip
    """Add to a block of `lines` times `vectors * LANES` numbers, `to[at ...]` with lines `to_line` apart, the blocks
    `source[start + places[i] ...]` with lines `line` apart, each times `weights[i]`, for i from `first` to `end`. The
    size of the block is fixed when this is compiled."""
    spots = list(product(range(code.size(-2)), range(code.size(-1))))
    ends = [code.place(at, (to_line, down), (WIDTH, right)) for down, right in spots]
    sums = code.sums([code.load(to, each) for each in ends])
    with code.repeated(code.builder.sub(end, first)) as index:
        i = code.builder.add(first, index)
        corner = code.builder.add(start, code.number(places, i))
        weight = code.everywhere(code.number(weights, i))
        for total, (down, right) in zip(sums, spots, strict=True):
            code.increase(total, code.load(source, code.place(corner, (line, down), (WIDTH, right))), weight)
    for total, each in zip(sums, ends, strict=True):
        code.store(code.builder.load(total), to, each)


@cache
def compiled(lines: int, vectors: int) -> Callable[..., None]:
    """`add_shares` for blocks of one size."""

    def add_shares(
        x: Any, kernels: Any, slopes: Any, winners: Any, to_x: Any, to_kernels: Any, patch_at: Any, kernel_at: Any,
        samples: int, image: int, line: int, height: int, row: int, through: bool,
    ) -> None:  # fmt: skip
        """The slopes of a sample, one per winner, are a sparse matrix S [kernels, places]: kernels get S @ patches and,
        if this goes `through` to the input, patches get S.T @ kernels. Channels come last."""

        def add(
            to: Any, to_at: Any, to_line: int, source: Any, line: int, places: Any, weights: Any, ends: Any
        ) -> None:
            for down in range(0, height, lines):
                for right in range(0, row, vectors * LANES):
                    first, start = 0, down * line + right
                    for one in range(len(ends)):
                        at = to_at[one] + down * to_line + right
                        add_weighted(
                            to, at, to_line, source, start, line, places, weights, first, ends[one], lines, vectors
                        )
                        first = ends[one]

        won = len(slopes) // max(1, samples)
        for sample in range(samples):
            here, its = slice(sample * image, len(x)), slice(sample * won, (sample + 1) * won)
            ends, found, values = by_kernel(slopes[its], winners[its], len(kernel_at))
            add(to_kernels, kernel_at, row, x[here], line, patch_at[found], values, ends)
            if through:
                ends, found, values = transposed(ends, found, values, len(patch_at))
                add(to_x[here], patch_at, line, kernels, row, kernel_at[found], values, ends)

    return kept(add_shares)


@kept
def by_kernel(slopes: Any, winners: Any, outputs: int) -> Any:
    """The slopes of a sample that are not zero, kernel by kernel: where each kernel's end, their places, and they."""
    ends, found, values = np.empty(outputs, np.int64), np.empty_like(winners), np.empty_like(slopes)
    last = 0
    for output in range(outputs):
        for at in range(output, len(slopes), outputs):
            found[last], values[last] = winners[at], slopes[at]
            last += slopes[at] != 0
        ends[output] = last
    return ends, found[:last], values[:last]


@kept
def transposed(ends: Any, found: Any, values: Any, columns: int) -> Any:
    """A sparse matrix, whose rows end at `ends`, by columns."""
    counts, rows, turned = np.zeros(columns, np.int64), np.empty_like(found), np.empty_like(values)
    for column in found:
        counts[column] += 1
    ahead, last = np.empty_like(counts), 0
    for column in range(columns):
        ahead[column] = last
        last += counts[column]
    first = 0
    for row in range(len(ends)):
        for at in range(first, ends[row]):
            place = ahead[found[at]]
            rows[place], turned[place] = row, values[at]
            ahead[found[at]] = place + 1
        first = ends[row]
    return ahead, rows, turned
