"""A convolution with kernels of 5 x 5 and the maxima of 2 x 2 after it, without gradients, by Winograd's minimal
filtering: a tile of 6 x 6 inputs gives 2 x 2 outputs, which are one window of the pooling, with 36 products per pair of
channels instead of 100 (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .products import add_block
from .vectors import LANES, ONE, SUMS, Code, Grid, Rows, block, kept

POINTS = (0, 3 / 4, -3 / 4, 3 / 2, -3 / 2)  # and infinity; half the error of the usual 0, 1, -1, 2, -2
FEW = 4  # input channels up to which a tile's products stay in registers
GROUP = 24  # tiles whose products are made together, so that they stay in the processor's second cache


def suits(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int], pool: nn.MaxPool2d) -> bool:
    """Whether `conv_max` computes this, and faster than the library: there must be a vector of output channels, and a
    vector of input channels or very few. Measured on x86 alone."""
    outputs, channels, *kernel = weight.shape
    usual = (pool.padding, pool.dilation, pool.ceil_mode) in ((0, 1, False), ((0, 0), (1, 1), False))
    halved = usual and all(each in (2, (2, 2)) for each in (pool.kernel_size, pool.stride))
    fitting = (
        x.ndim == 4 and x.shape[1] == channels and (bias is None or (bias.shape, bias.dtype) == ((outputs,), x.dtype))
    )
    if not (halved and fitting and kernel == [5, 5] and torch.backends.cpu.get_cpu_capability().startswith("AVX")):
        return False
    down, right = ((size + 2 * more - 4) // 2 for size, more in zip(x.shape[2:], padding, strict=True))
    return outputs >= LANES and not FEW < channels < LANES and right >= 2 and len(x) * down * right >= GROUP


def conv_max(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> Tensor:
    """The maxima of windows of 2 x 2 of a convolution of stride one, up to rounding. Where an input that is not finite
    would have been seen, the result is not finite, either; an infinity may become NaN, and both may reach all windows
    whose tiles they are in.

    >>> conv, x = nn.Conv2d(32, 20, 5, padding=1), torch.rand(4, 32, 8, 8)
    >>> maxima = conv_max(x, conv.weight, conv.bias, conv.padding)
    >>> torch.allclose(maxima, nn.MaxPool2d(2)(conv(x)), atol=1e-5)
    True
    """
    (outputs, channels), (high, wide) = weight.shape[:2], padding
    bias = weight.new_zeros(outputs) if bias is None else bias
    x = F.pad(x, (wide, wide, high, high)) if high or wide else x
    images, kernels = (each.detach().permute(0, 2, 3, 1) for each in (x, weight))
    samples, height, width, _ = images.shape
    down, right = (height - 4) // 2, (width - 4) // 2
    maxima = torch.empty(samples, down, right, outputs)
    arrays = [each.reshape(-1).numpy() for each in (images, kernels, bias.detach(), maxima)]
    run = of_few(channels) if channels <= FEW else of_many(vectors_of_block(outputs))
    run(*arrays, samples, height, width, channels, outputs, down, right)
    return maxima.permute(0, 3, 1, 2)


def vectors_of_block(outputs: int) -> int:
    """How many vectors wide the equal blocks are into which products are cut: so few that they have six rows."""
    vectors = -(-outputs // LANES)
    return -(-vectors // -(-vectors // (SUMS // 6)))


def transforms(points: Sequence[float]) -> tuple[Rows, Rows, Rows]:
    """The matrices A, B and G of F(2, 5), with which the outputs of a kernel g on inputs d are A ((G g) * (B d)), and
    A ((G g G') * (B d B')) A' in two dimensions. This is the transpose of a product of polynomials that are evaluated
    at some points and at infinity, multiplied there, and interpolated.

    >>> a, b, g = map(np.array, transforms(POINTS))
    >>> np.allclose(a @ ((g @ [1, 2, 3, 4, 5]) * (b @ [1, 0, 2, 0, 3, 1])), [1 + 6 + 15, 4 + 12 + 5])
    True
    """
    others = [np.array([q for q in points if q != p]) for p in points]
    outputs = [[1, p] for p in points] + [[0, 1]]
    inputs = [[*np.poly(each)[::-1], 0] for each in others] + [np.poly(points)[::-1]]
    kernels = [p ** np.arange(5) / np.prod(p - each) for p, each in zip(points, others, strict=True)] + [np.eye(5)[4]]
    a, b, g = (tuple(tuple(map(float, row)) for row in each) for each in (np.transpose(outputs), inputs, kernels))
    return a, b, g


_OUTPUTS, _INPUTS, _KERNELS = transforms(POINTS)


@cache
def of_many(vectors: int) -> Callable[..., None]:
    """The kernel for many input channels, which vectors are made of: of a group of tiles, the transforms of inputs
    [36, tiles, channels], their products with those of kernels [36, channels, outputs], and the maxima. A last vector
    that would not be full begins earlier."""
    rows, wide_block = SUMS // vectors, vectors * LANES

    def conv_max_of_many(
        x: Any, weight: Any, bias: Any, maxima: Any,
        samples: int, height: int, width: int, channels: int, outputs: int, down: int, right: int,
    ) -> None:  # fmt: skip
        line, wide = width * channels, -(-outputs // wide_block) * wide_block
        kernels, kernels_apart = transformed(weight, channels, outputs, wide)
        values_apart, products_apart = GROUP * channels + LANES, GROUP * wide + LANES
        values, products = np.empty(36 * values_apart, np.float32), np.empty(36 * products_apart, np.float32)
        tiles = samples * down * right
        for first in range(0, tiles, GROUP):
            count = min(GROUP, tiles - first)
            for tile in range(count):
                above, column = divmod(first + tile, right)
                sample, row = divmod(above, down)
                corner = (sample * height + 2 * row) * line + 2 * column * channels
                for place in range(0, channels, LANES):
                    at = min(place, channels - LANES)
                    to = tile * channels + at
                    transform_input(values, to, values_apart, x, corner + at, line, 2 * channels, channels)
            for index in range(36):
                for row in range(0, count, rows):
                    for column in range(0, wide, wide_block):
                        add_block(
                            products, index * products_apart + row * wide + column, wide,
                            values, index * values_apart + row * channels, channels, 1,
                            kernels, index * kernels_apart + column, wide, channels, False, rows, vectors,
                        )  # fmt: skip
            for tile in range(count):
                for place in range(0, outputs, LANES):
                    at = min(place, outputs - LANES)
                    to = (first + tile) * outputs + at
                    write_maxima(maxima, to, bias, at, products, tile * wide + at, products_apart)

    return kept(conv_max_of_many)


@cache
def of_few(few: int) -> Callable[..., None]:
    """The kernel for a few input channels: vectors are made of neighbouring tiles of the input, for which its even and
    odd columns are separated, and of output channels."""

    def conv_max_of_few(
        x: Any, weight: Any, bias: Any, maxima: Any,
        samples: int, height: int, width: int, channels: int, outputs: int, down: int, right: int,
    ) -> None:  # fmt: skip
        wide = -(-right // LANES) * LANES
        half = max(wide + 2, (width + 1) // 2)
        kernels, apart = transformed(weight, channels, outputs, outputs)
        image = np.zeros((channels, height, 2, half), np.float32)
        flat, values = image.reshape(-1), np.empty(36 * channels * wide, np.float32)
        at = 0
        for sample in range(samples):
            for row in range(height):
                for column in range(width):
                    for channel in range(few):
                        image[channel, row, column % 2, column // 2] = x[at]
                        at += 1
            for row in range(down):
                for channel in range(channels):
                    for tile in range(0, wide, LANES):
                        to, corner = channel * wide + tile, (channel * height + 2 * row) * 2 * half + tile
                        transform_input(values, to, channels * wide, flat, corner, 2 * half, 1, half)
                for place in range(0, right, 2):
                    tile = min(place, right - 2)
                    to = ((sample * down + row) * right + tile) * outputs
                    for output in range(0, outputs, LANES):
                        start = min(output, outputs - LANES)
                        multiply_two(maxima, to, outputs, bias, values, tile, wide, kernels, start, apart, few)

    return kept(conv_max_of_few)


@kept
def transformed(weight: Any, channels: int, outputs: int, wide: int) -> Any:
    """The transforms [36, channels, wide] of kernels [outputs, 5, 5, channels], and how far apart the 36 are: a bit
    further than they are long, or they would compete for the same places of the first cache."""
    apart = channels * wide + LANES
    kernels = np.empty(36 * apart, np.float32)
    for place in range(0, outputs, LANES):
        output = min(place, outputs - LANES)
        for channel in range(channels):
            to, start = channel * wide + output, output * 25 * channels + channel
            transform_kernels(kernels, to, apart, weight, start, channels, 25 * channels)
    return kernels, apart


def write_transform(code: Code, matrix: Rows, grid: Grid, to: Any, at: Any, apart: Any) -> None:
    """Write the 36 numbers of a transform to places that are so far apart."""
    for index, vector in enumerate(chain.from_iterable(code.on_both_sides(matrix, grid))):
        code.store(vector, to, code.place(at, (apart, index)))


def window(code: Code, across: Grid, bias: Any) -> Any:
    """The maxima of tiles' outputs, from rows of products that are transformed already. Rounding keeps their order, so
    that the bias may be added in the end."""
    columns = [code.times(_OUTPUTS, column) for column in zip(*across, strict=True)]
    return code.add(code.largest([*chain.from_iterable(columns)]), bias)


@block
def transform_input(
    code: Code, to: Any, at: Any, apart: Any, x: Any, corner: Any, line: Any, pair: Any, step: Any
) -> None:
    """Write the transform of tiles, whose lines are `line` apart, pairs of columns `pair`, and columns of a pair
    `step`."""
    places = [[code.place(corner, (line, i), (pair, j // 2), (step, j % 2)) for j in range(6)] for i in range(6)]
    write_transform(code, _INPUTS, [[code.load(x, each) for each in row] for row in places], to, at, apart)


@block
def transform_kernels(
    code: Code, to: Any, at: Any, apart: Any, weight: Any, start: Any, step: Any, kernel: Any
) -> None:
    """Write the transform of one channel of kernels that are `kernel` apart, and their numbers `step`."""
    places = [[code.place(start, (step, 5 * i + j)) for j in range(5)] for i in range(5)]
    grid = [[code.gather(weight, each, kernel) for each in row] for row in places]
    write_transform(code, _KERNELS, grid, to, at, apart)


@block
def write_maxima(code: Code, to: Any, at: Any, bias: Any, bias_at: Any, products: Any, start: Any, apart: Any) -> None:
    """Write the maxima of a tile, one vector of channels."""
    rows = ([code.load(products, code.place(start, (apart, 6 * i + j))) for j in range(6)] for i in range(6))
    across = [code.times(_OUTPUTS, row) for row in rows]
    code.store(window(code, across, code.load(bias, bias_at)), to, at)


@block
def multiply_two(
    code: Code, maxima: Any, to: Any, outputs: Any, bias: Any, values: Any, tile: Any, wide: Any, kernels: Any,
    start: Any, apart: Any, channels: Any,
) -> None:  # fmt: skip
    """Write the maxima of a tile and the next, one vector of channels each, from the transforms of inputs
    [36, channels, wide] and kernels [36, channels, outputs]."""
    tiles = range(2)
    across: list[Grid] = [[] for _ in tiles]
    for row in range(6):
        products = [[code.zeros] * 6 for _ in tiles]
        for column, channel in product(range(6), range(code.size(-1))):
            kernel = code.load(kernels, code.place(start, (apart, 6 * row + column), (outputs, channel)))
            line = code.place(tile, (wide, (6 * row + column) * code.size(-1) + channel))
            for side in tiles:
                value = code.everywhere(code.number(values, code.place(line, (ONE, side))))
                products[side][column] = code.add_product(products[side][column], value, kernel)
        for side in tiles:
            across[side].append(code.times(_OUTPUTS, products[side]))
    for side in tiles:
        place = code.place(code.builder.add(to, start), (outputs, side))
        code.store(window(code, across[side], code.load(bias, start)), maxima, place)
