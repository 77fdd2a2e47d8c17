"""Convolution with 5 x 5 kernels followed by 2 x 2 max pooling, without gradients, by Winograd's minimal filtering.

A tile of 6 x 6 inputs gives 2 x 2 outputs, which are one pooling window, with 36 products per pair of channels instead
of 100 (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016). Used in evaluation and in every
other pass that needs no gradient (LeNet-5w, CNN-4). Needs numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .matmul import multiply_block
from .processor import has_avx
from .simd import ACCUMULATORS, LANES, ONE, Code, Matrix, VectorGrid, block, jit

POINTS = (0, 3 / 4, -3 / 4, 3 / 2, -3 / 2)  # and infinity; half the error of the usual 0, 1, -1, 2, -2
FEW_CHANNELS = 4  # up to so many input channels, a tile's products stay in registers
TILE_GROUP = 24  # tiles that are computed together, so that their products stay in the second-level cache


def is_faster(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int], pool: Sequence[Any]) -> bool:
    """Whether `conv_pool_2x2` computes this, and faster than PyTorch: output channels must fill a vector, and input
    channels as well unless they are very few. Measured on x86 only."""
    outputs, channels, *kernel = weight.shape
    pool_2x2 = tuple(pool) == ((2, 2), (2, 2), (0, 0), (1, 1), False)
    shapes_fit = (
        x.ndim == 4 and x.shape[1] == channels and (bias is None or (bias.shape, bias.dtype) == ((outputs,), x.dtype))
    )
    if not (pool_2x2 and shapes_fit and kernel == [5, 5] and has_avx()):
        return False
    tile_rows, tile_columns = ((size + 2 * pad - 4) // 2 for size, pad in zip(x.shape[2:], padding, strict=True))
    channels_fit = outputs >= LANES and not FEW_CHANNELS < channels < LANES
    return channels_fit and tile_columns >= 2 and len(x) * tile_rows * tile_columns >= TILE_GROUP


def conv_pool_2x2(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> Tensor:
    """2 x 2 max pooling of a convolution of stride one, up to rounding. An input that is not finite makes the windows
    that see it not finite, and may do so to all windows whose tiles contain it; an infinity may become NaN.

    >>> conv, x = torch.nn.Conv2d(32, 20, 5, padding=1), torch.rand(4, 32, 8, 8)
    >>> maxima = conv_pool_2x2(x, conv.weight, conv.bias, conv.padding)
    >>> torch.allclose(maxima, torch.nn.MaxPool2d(2)(conv(x)), atol=1e-5)
    True
    """
    (outputs, channels), (pad_rows, pad_columns) = weight.shape[:2], padding
    bias = weight.new_zeros(outputs) if bias is None else bias
    x = F.pad(x, (pad_columns, pad_columns, pad_rows, pad_rows)) if pad_rows or pad_columns else x
    images, kernels = (leaf.detach().permute(0, 2, 3, 1) for leaf in (x, weight))
    samples, height, width, _ = images.shape
    tile_rows, tile_columns = (height - 4) // 2, (width - 4) // 2
    maxima = torch.empty(samples, tile_rows, tile_columns, outputs)
    arrays = [leaf.reshape(-1).numpy() for leaf in (images, kernels, bias.detach(), maxima)]
    if channels <= FEW_CHANNELS:
        run = compile_few_channels(channels)
    else:
        run = compile_many_channels(block_width(outputs))
    run(*arrays, samples, height, width, channels, outputs, tile_rows, tile_columns)
    return maxima.permute(0, 3, 1, 2)


def block_width(outputs: int) -> int:
    """The width, in vectors, of the equal blocks into which the products are cut: small enough for six rows each."""
    vectors = -(-outputs // LANES)
    return -(-vectors // -(-vectors // (ACCUMULATORS // 6)))


def winograd_matrices(points: Sequence[float]) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices A, B and G of F(2, 5): the outputs of a kernel g on inputs d are A ((G g) * (B d)), in two
    dimensions A ((G g G') * (B d B')) A'. This is the transpose of multiplying polynomials by their values at some
    points and at infinity.

    >>> a, b, g = map(np.array, winograd_matrices(POINTS))
    >>> np.allclose(a @ ((g @ [1, 2, 3, 4, 5]) * (b @ [1, 0, 2, 0, 3, 1])), [1 + 6 + 15, 4 + 12 + 5])
    True
    """
    others = [np.array([q for q in points if q != p]) for p in points]
    outputs = [[1, p] for p in points] + [[0, 1]]
    inputs = [[*np.poly(rest)[::-1], 0] for rest in others] + [np.poly(points)[::-1]]
    kernels = [p ** np.arange(5) / np.prod(p - rest) for p, rest in zip(points, others, strict=True)] + [np.eye(5)[4]]
    a, b, g = (tuple(tuple(map(float, row)) for row in rows) for rows in (np.transpose(outputs), inputs, kernels))
    return a, b, g


_OUTPUTS, _INPUTS, _KERNELS = winograd_matrices(POINTS)


@cache
def compile_many_channels(vectors: int) -> Callable[..., None]:
    """`conv_pool_2x2` for many input channels, which form the vectors. Per group of tiles: transform the inputs
    [36, tiles, channels], multiply with the transformed kernels [36, channels, outputs], take the maxima. The last
    vector of a row overlaps the one before it if it would not be full."""
    rows, block_columns = ACCUMULATORS // vectors, vectors * LANES

    def many_channels(
        x: Any, weight: Any, bias: Any, maxima: Any,
        samples: int, height: int, width: int, channels: int, outputs: int, tile_rows: int, tile_columns: int,
    ) -> None:  # fmt: skip
        row_stride, padded = width * channels, -(-outputs // block_columns) * block_columns
        kernels, kernel_stride = transform_all_kernels(weight, channels, outputs, padded)
        value_stride, product_stride = TILE_GROUP * channels + LANES, TILE_GROUP * padded + LANES
        values, products = np.empty(36 * value_stride, np.float32), np.empty(36 * product_stride, np.float32)
        tiles = samples * tile_rows * tile_columns
        for first in range(0, tiles, TILE_GROUP):
            count = min(TILE_GROUP, tiles - first)
            for tile in range(count):
                above, column = divmod(first + tile, tile_columns)
                sample, row = divmod(above, tile_rows)
                corner = (sample * height + 2 * row) * row_stride + 2 * column * channels
                for channel in range(0, channels, LANES):
                    at = min(channel, channels - LANES)
                    to = tile * channels + at
                    transform_input(values, to, value_stride, x, corner + at, row_stride, 2 * channels, channels)
            for index in range(36):
                for row in range(0, count, rows):
                    for column in range(0, padded, block_columns):
                        multiply_block(
                            products, index * product_stride + row * padded + column, padded,
                            values, index * value_stride + row * channels, channels, 1,
                            kernels, index * kernel_stride + column, padded, channels, False, rows, vectors,
                        )  # fmt: skip
            for tile in range(count):
                for output in range(0, outputs, LANES):
                    at = min(output, outputs - LANES)
                    to = (first + tile) * outputs + at
                    write_maxima(maxima, to, bias, at, products, tile * padded + at, product_stride)

    return jit(many_channels)


@cache
def compile_few_channels(few: int) -> Callable[..., None]:
    """`conv_pool_2x2` for a few input channels. In the input transform, vectors are neighbouring tiles, for which even
    and odd columns of the input are separated; in the products, they are output channels."""

    def few_channels(
        x: Any, weight: Any, bias: Any, maxima: Any,
        samples: int, height: int, width: int, channels: int, outputs: int, tile_rows: int, tile_columns: int,
    ) -> None:  # fmt: skip
        padded = -(-tile_columns // LANES) * LANES
        half = max(padded + 2, (width + 1) // 2)
        kernels, stride = transform_all_kernels(weight, channels, outputs, outputs)
        image = np.zeros((channels, height, 2, half), np.float32)
        flat, values = image.reshape(-1), np.empty(36 * channels * padded, np.float32)
        at = 0
        for sample in range(samples):
            for row in range(height):
                for column in range(width):
                    for channel in range(few):
                        image[channel, row, column % 2, column // 2] = x[at]
                        at += 1
            for row in range(tile_rows):
                for channel in range(channels):
                    for tile in range(0, padded, LANES):
                        to, corner = channel * padded + tile, (channel * height + 2 * row) * 2 * half + tile
                        transform_input(values, to, channels * padded, flat, corner, 2 * half, 1, half)
                for first_tile in range(0, tile_columns, 2):
                    tile = min(first_tile, tile_columns - 2)
                    to = ((sample * tile_rows + row) * tile_columns + tile) * outputs
                    for output in range(0, outputs, LANES):
                        start = min(output, outputs - LANES)
                        multiply_two_tiles(maxima, to, outputs, bias, values, tile, padded, kernels, start, stride, few)

    return jit(few_channels)


@jit
def transform_all_kernels(weight: Any, channels: int, outputs: int, padded: int) -> Any:
    """The transforms [36, channels, padded] of kernels [outputs, 5, 5, channels], and the stride between the 36:
    a little more than their length, or they would compete for the same lines of the first-level cache."""
    stride = channels * padded + LANES
    kernels = np.empty(36 * stride, np.float32)
    for first in range(0, outputs, LANES):
        output = min(first, outputs - LANES)
        for channel in range(channels):
            to, start = channel * padded + output, output * 25 * channels + channel
            transform_kernels(kernels, to, stride, weight, start, channels, 25 * channels)
    return kernels, stride


def write_transform(code: Code, matrix: Matrix, grid: VectorGrid, out: Any, out_at: Any, stride: Any) -> None:
    """Transform tiles or kernels and store the 36 vectors, `stride` apart."""
    for index, vector in enumerate(chain.from_iterable(code.transform_2d(matrix, grid))):
        code.store(vector, out, code.offset(out_at, (stride, index)))


def pool_outputs(code: Code, across: VectorGrid, bias: Any) -> Any:
    """The maxima of the tiles' 2 x 2 outputs, from products whose rows are transformed already. Rounding is monotonic,
    so the bias may be added after the maximum."""
    columns = [code.transform(_OUTPUTS, column) for column in zip(*across, strict=True)]
    return code.add(code.maximum([*chain.from_iterable(columns)]), bias)


@block
def transform_input(
    code: Code, out: Any, out_at: Any, stride: Any, x: Any, corner: Any, row_stride: Any, pair_stride: Any,
    column_stride: Any,
) -> None:  # fmt: skip
    """Store the transform of the tiles at `corner`. Column j is j // 2 times `pair_stride` plus j % 2 times
    `column_stride` away, so that even and odd columns may lie apart."""
    strides = (row_stride, pair_stride, column_stride)
    offsets = [
        [code.offset(corner, *zip(strides, (i, j // 2, j % 2), strict=True)) for j in range(6)] for i in range(6)
    ]
    write_transform(code, _INPUTS, [[code.load(x, offset) for offset in row] for row in offsets], out, out_at, stride)


@block
def transform_kernels(
    code: Code, out: Any, out_at: Any, stride: Any, weight: Any, start: Any, element_stride: Any, kernel_stride: Any
) -> None:
    """Store the transform of one input channel of a vector of kernels."""
    offsets = [[code.offset(start, (element_stride, 5 * i + j)) for j in range(5)] for i in range(5)]
    grid = [[code.gather(weight, offset, kernel_stride) for offset in row] for row in offsets]
    write_transform(code, _KERNELS, grid, out, out_at, stride)


@block
def write_maxima(
    code: Code, out: Any, at: Any, bias: Any, bias_at: Any, products: Any, start: Any, stride: Any
) -> None:
    """Store the maxima of one tile for one vector of output channels."""
    rows = ([code.load(products, code.offset(start, (stride, 6 * i + j))) for j in range(6)] for i in range(6))
    across = [code.transform(_OUTPUTS, row) for row in rows]
    code.store(pool_outputs(code, across, code.load(bias, bias_at)), out, at)


@block
def multiply_two_tiles(
    code: Code, maxima: Any, to: Any, outputs: Any, bias: Any, values: Any, tile: Any, padded: Any, kernels: Any,
    start: Any, stride: Any, channels: Any,
) -> None:  # fmt: skip
    """Store the maxima of two neighbouring tiles for one vector of output channels, from the transforms of inputs
    [36, channels, padded] and kernels [36, channels, outputs]."""
    tiles = range(2)
    across: list[VectorGrid] = [[] for _ in tiles]
    for row in range(6):
        products = [[code.zeros] * 6 for _ in tiles]
        for column, channel in product(range(6), range(code.constant(-1))):
            kernel = code.load(kernels, code.offset(start, (stride, 6 * row + column), (outputs, channel)))
            value_at = code.offset(tile, (padded, (6 * row + column) * code.constant(-1) + channel))
            for side in tiles:
                value = code.broadcast(code.load_scalar(values, code.offset(value_at, (ONE, side))))
                products[side][column] = code.multiply_add(products[side][column], value, kernel)
        for side in tiles:
            across[side].append(code.transform(_OUTPUTS, products[side]))
    for side in tiles:
        offset = code.offset(code.builder.add(to, start), (outputs, side))
        code.store(pool_outputs(code, across[side], code.load(bias, start)), maxima, offset)
