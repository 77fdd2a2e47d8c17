"""Convolution of stride one followed by max pooling, as one step.

Three quarters or more of the convolution's outputs lose in the pooling and have a zero gradient; PyTorch multiplies
with these zeros, this does not. The forward pass is PyTorch's; passes without gradient use `winograd.py` where it is
faster. Used by `speed_up` for convolutions of two or more channels (LeNet-5w, CNN-4). Needs numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .reading import Pair, Pool
from .simd import ACCUMULATORS, LANES, VECTOR_STEP, Code, block, jit
from .winograd import conv_pool_2x2, is_faster


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pool: Pool) -> Tensor:
    """Max pooling of a convolution of stride one.

    >>> conv, x = torch.nn.Conv2d(32, 3, 3, padding=1), torch.rand(4, 32, 8, 8)
    >>> pool = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    >>> torch.equal(conv_pool(x, conv.weight, conv.bias, (1, 1), pool), torch.nn.MaxPool2d(2)(conv(x)))
    True
    """
    needs_grad = [torch.is_grad_enabled() and leaf is not None and leaf.requires_grad for leaf in (x, weight, bias)]
    is_float32 = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if is_float32 and any(needs_grad[:2]):
        return ConvPool.apply(x, weight, bias, padding, pool)  # type: ignore[no-any-return, no-untyped-call]
    if is_float32 and not any(needs_grad) and is_faster(x, weight, bias, padding, pool):
        return conv_pool_2x2(x, weight, bias, padding)
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), *pool)


class ConvPool(torch.autograd.Function):
    """PyTorch's forward pass, with a backward pass that uses only the outputs that won in the pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pool: Pool) -> Tensor:
        """The maxima; their indices are saved."""
        outputs = F.conv2d(x, weight, bias, padding=padding)
        maxima, indices = F.max_pool2d(outputs, *pool, return_indices=True)
        ctx.save_for_backward(x, weight, indices)
        ctx.shape, ctx.padding = outputs.shape, padding
        return maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of input, weight and bias; PyTorch computes those that are differentiated again."""
        backward = dense_backward if torch.is_grad_enabled() else sparse_backward
        x, weight, indices = ctx.saved_tensors
        return *backward(x, weight, indices, grad, ctx.shape, ctx.padding, ctx.needs_input_grad[:3]), None, None


Gradients = tuple[Tensor | None, ...]


def dense_backward(
    x: Tensor, weight: Tensor, indices: Tensor, grad: Tensor, shape: torch.Size, padding: Sequence[int],
    needs_grad: Sequence[bool],
) -> Gradients:  # fmt: skip
    """The gradients by PyTorch."""
    grad_outputs = grad.new_zeros(shape).flatten(2).scatter_add(2, indices.flatten(2), grad.flatten(2)).view(shape)
    options = ([shape[1]], [1, 1], list(padding), [1, 1], False, [0, 0], 1, list(needs_grad))
    return tuple(torch.ops.aten.convolution_backward(grad_outputs, x, weight, *options))


def sparse_backward(
    x: Tensor, weight: Tensor, indices: Tensor, grad: Tensor, shape: torch.Size, padding: Sequence[int],
    needs_grad: Sequence[bool],
) -> Gradients:  # fmt: skip
    """The gradients as sums over the maxima. Channels come last in memory, and kernel rows are padded to a multiple of
    the block width."""
    (outputs, channels, height, width), (pad_rows, pad_columns) = weight.shape, padding
    images = pad(x, pad_columns, pad_columns, pad_rows, pad_rows)
    images, kernels, grads, winners = (leaf.detach().permute(0, 2, 3, 1) for leaf in (images, weight, grad, indices))
    block_rows, vectors = block_size(height, width * channels)
    extra = -width * channels % (vectors * LANES)
    flat, kernels = pad(images.flatten(), 0, extra), pad(kernels.flatten(2), 0, extra)
    grad_flat, grad_kernels = torch.zeros(flat.shape), torch.zeros(kernels.shape)
    kernel_row, image_row = kernels.shape[2], images.shape[2] * channels
    patch_at = torch.arange(shape[2])[:, None] * image_row + torch.arange(shape[3]) * channels
    kernel_at = torch.arange(outputs) * height * kernel_row
    leaves = (flat, kernels, grads, winners, grad_flat, grad_kernels, patch_at, kernel_at)
    arrays = [leaf.flatten().numpy() for leaf in leaves]
    sizes = (len(images), images[:1].numel(), image_row, height, kernel_row)
    compile_backward(block_rows, vectors)(*arrays, *sizes, needs_grad[0])
    grad_images = grad_flat[: images.numel()].view(images.shape).permute(0, 3, 1, 2)
    grad_x = grad_images[:, :, pad_rows : pad_rows + x.shape[2], pad_columns : pad_columns + x.shape[3]]
    rows = grad_kernels[:, :, : width * channels]
    grad_weight = rows.view(outputs, height, width, channels).permute(0, 3, 1, 2)
    results = (grad_x, grad_weight, grad.sum((0, 2, 3)))
    return tuple(leaf if needed else None for leaf, needed in zip(results, needs_grad, strict=True))


def pad(leaf: Tensor, *before_and_after: int) -> Tensor:
    """F.pad, without a copy if there is nothing to add."""
    return F.pad(leaf, before_and_after) if any(before_and_after) else leaf


def block_size(height: int, row: int, lanes: int = LANES, accumulators: int = ACCUMULATORS) -> tuple[int, int]:
    """Rows and vectors of the blocks into which a kernel of `height` rows is cut so that they stay in registers: the
    whole kernel if it fits, else equal parts of one row.

    >>> [block_size(height, row, lanes=8, accumulators=12) for height, row in ((5, 15), (5, 160), (3, 200))]
    [(5, 2), (1, 10), (1, 9)]
    """
    vectors = -(-row // lanes)
    if height * vectors <= accumulators:
        return height, vectors
    return 1, -(-vectors // -(-vectors // accumulators))


@block
def add_weighted_blocks(
    code: Code, out: Any, out_at: Any, out_stride: Any, source: Any, start: Any, stride: Any, offsets: Any,
    weights: Any, first: Any, end: Any, rows: Any, vectors: Any,
) -> None:  # fmt: skip
    """Add to the block at `out[out_at]` the blocks at `source[start + offsets[i]]`, each times `weights[i]`, for i from
    `first` to `end`. Blocks are `rows` x `vectors * LANES`, a size that is known at compile time; their rows are
    `out_stride` and `stride` apart."""
    cells = list(product(range(code.constant(-2)), range(code.constant(-1))))
    out_offsets = [code.offset(out_at, (out_stride, row), (VECTOR_STEP, vector)) for row, vector in cells]
    totals = code.accumulators([code.load(out, offset) for offset in out_offsets])
    with code.loop(code.builder.sub(end, first)) as index:
        i = code.builder.add(first, index)
        corner = code.builder.add(start, code.load_scalar(offsets, i))
        weight = code.broadcast(code.load_scalar(weights, i))
        for total, (row, vector) in zip(totals, cells, strict=True):
            offset = code.offset(corner, (stride, row), (VECTOR_STEP, vector))
            code.accumulate(total, code.load(source, offset), weight)
    for total, offset in zip(totals, out_offsets, strict=True):
        code.store(code.builder.load(total), out, offset)


@cache
def compile_backward(block_rows: int, vectors: int) -> Callable[..., None]:
    """The compiled part of `sparse_backward` for one block size."""

    def add_gradients(
        x: Any, kernels: Any, grads: Any, winners: Any, grad_x: Any, grad_kernels: Any, patch_at: Any, kernel_at: Any,
        samples: int, image: int, image_row: int, height: int, kernel_row: int, needs_grad_x: bool,
    ) -> None:  # fmt: skip
        """The gradients of a sample's maxima are a sparse matrix S [kernels, positions]: kernels get S @ patches and,
        if the input needs a gradient, patches get S.T @ kernels."""

        def add_products(
            out: Any, out_at: Any, out_stride: int, source: Any, stride: int, offsets: Any, weights: Any, ends: Any
        ) -> None:
            for row in range(0, height, block_rows):
                for column in range(0, kernel_row, vectors * LANES):
                    first, start = 0, row * stride + column
                    for index in range(len(ends)):
                        at = out_at[index] + row * out_stride + column
                        add_weighted_blocks(
                            out, at, out_stride, source, start, stride, offsets, weights, first, ends[index],
                            block_rows, vectors,
                        )  # fmt: skip
                        first = ends[index]

        maxima = len(grads) // max(1, samples)
        for sample in range(samples):
            pixels, these = slice(sample * image, len(x)), slice(sample * maxima, (sample + 1) * maxima)
            ends, columns, values = sparse_rows(grads[these], winners[these], len(kernel_at))
            add_products(grad_kernels, kernel_at, kernel_row, x[pixels], image_row, patch_at[columns], values, ends)
            if needs_grad_x:
                ends, rows, values = transpose_sparse(ends, columns, values, len(patch_at))
                add_products(grad_x[pixels], patch_at, image_row, kernels, kernel_row, kernel_at[rows], values, ends)

    return jit(add_gradients)


@jit
def sparse_rows(grads: Any, winners: Any, outputs: int) -> Any:
    """The gradients of a sample's maxima that are not zero, as a sparse matrix with one row per kernel: the ends of the
    rows, the columns (positions) and the values."""
    ends, columns, values = np.empty(outputs, np.int64), np.empty_like(winners), np.empty_like(grads)
    count = 0
    for output in range(outputs):
        for index in range(output, len(grads), outputs):
            columns[count], values[count] = winners[index], grads[index]
            count += grads[index] != 0
        ends[output] = count
    return ends, columns[:count], values[:count]


@jit
def transpose_sparse(ends: Any, columns: Any, values: Any, n_columns: int) -> Any:
    """The transpose of a sparse matrix, in the same form."""
    counts, rows, out_values = np.zeros(n_columns, np.int64), np.empty_like(columns), np.empty_like(values)
    for column in columns:
        counts[column] += 1
    out_ends, total = np.empty_like(counts), 0
    for column in range(n_columns):
        out_ends[column] = total
        total += counts[column]
    first = 0
    for row in range(len(ends)):
        for index in range(first, ends[row]):
            to = out_ends[columns[index]]
            rows[to], out_values[to] = row, values[index]
            out_ends[columns[index]] = to + 1
        first = ends[row]
    return out_ends, rows, out_values
