"""Matrix products and transposes for compiled kernels, as functions of flat float32 arrays.

A block of the result stays in vector registers while the loop runs over the inner dimension. Used by the dense network
(`dense_compiled.py`) and, block by block, by `winograd.py`. Needs numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .simd import ACCUMULATORS, LANES, VECTOR_STEP, Code, block, jit

MAX_ROWS = ACCUMULATORS // 2
"""Rows of the largest blocks, which are two vectors wide."""
MIN_ROWS = MAX_ROWS // 3


@block
def multiply_block(
    code: Code, out: Any, out_at: Any, out_stride: Any, left: Any, left_at: Any, left_stride: Any, left_step: Any,
    right: Any, right_at: Any, right_stride: Any, inner: Any, add: Any, rows: Any, vectors: Any,
) -> None:  # fmt: skip
    """`multiply` for a block of `rows` x `vectors * LANES`, a size that is known at compile time."""
    row_range, vector_range = range(code.constant(-2)), range(code.constant(-1))
    offsets = [code.offset(out_at, (out_stride, row), (VECTOR_STEP, v)) for row in row_range for v in vector_range]
    totals = code.accumulators([code.zeros] * len(offsets))
    with code.builder.if_then(add):
        for total, offset in zip(totals, offsets, strict=True):
            code.builder.store(code.load(out, offset), total)
    with code.loop(inner) as i:
        start, step = code.builder.add(right_at, code.builder.mul(right_stride, i)), code.builder.mul(left_step, i)
        right_row = [code.load(right, code.offset(start, (VECTOR_STEP, v))) for v in vector_range]
        for row in row_range:
            offset = code.builder.add(code.offset(left_at, (left_stride, row)), step)
            factor = code.broadcast(code.load_scalar(left, offset))
            for v, vector in enumerate(right_row):
                code.accumulate(totals[row * len(right_row) + v], vector, factor)
    for total, offset in zip(totals, offsets, strict=True):
        code.store(code.builder.load(total), out, offset)


def compile_strip(rows: int) -> Callable[..., None]:
    """`multiply` for a fixed number of rows."""

    def strip(
        out: Any, out_at: int, out_stride: int, columns: int, left: Any, left_at: int, left_stride: int,
        left_step: int, right: Any, right_at: int, right_stride: int, inner: int, add: bool,
    ) -> None:  # fmt: skip
        column = 0
        while columns - column >= 2 * LANES:
            multiply_block(
                out, out_at + column, out_stride, left, left_at, left_stride, left_step, right, right_at + column,
                right_stride, inner, add, rows, 2,
            )  # fmt: skip
            column += 2 * LANES
        while columns - column >= LANES:
            multiply_block(
                out, out_at + column, out_stride, left, left_at, left_stride, left_step, right, right_at + column,
                right_stride, inner, add, rows, 1,
            )  # fmt: skip
            column += LANES
        for row in range(rows if column < columns else 0):
            for rest in range(column, columns):
                at = out_at + row * out_stride + rest
                total = out[at] if add else np.float32(0)
                for i in range(inner):
                    total += (
                        left[left_at + row * left_stride + i * left_step] * right[right_at + i * right_stride + rest]
                    )
                out[at] = total

    return jit(strip)


tall_strip, short_strip, one_row = compile_strip(MAX_ROWS), compile_strip(MIN_ROWS), compile_strip(1)


@jit
def multiply(
    out: Any, out_at: int, out_stride: int, rows: int, columns: int, left: Any, left_at: int, left_stride: int,
    left_step: int, right: Any, right_at: int, right_stride: int, inner: int, add: bool,
) -> None:  # fmt: skip
    """out = left @ right, or out += left @ right if `add`.

    Args:
        out, out_at, out_stride: the array of the result, the offset of its first element, the distance of its rows.
        rows, columns: the size of the result.
        left, left_at, left_stride, left_step: the left matrix, whose rows are `left_stride` and columns `left_step`
            apart: a transposed matrix has a stride of one.
        right, right_at, right_stride: the right matrix, whose columns are neighbours.
        inner: the inner dimension.
        add: whether the product is added to what is there.
    """
    row = 0
    while row < rows:
        to, start = out_at + row * out_stride, left_at + row * left_stride
        if rows - row >= MAX_ROWS:
            tall_strip(
                out, to, out_stride, columns, left, start, left_stride, left_step, right, right_at, right_stride, inner,
                add,
            )  # fmt: skip
            row += MAX_ROWS
        elif rows - row >= MIN_ROWS:
            short_strip(
                out, to, out_stride, columns, left, start, left_stride, left_step, right, right_at, right_stride, inner,
                add,
            )  # fmt: skip
            row += MIN_ROWS
        else:
            one_row(
                out, to, out_stride, columns, left, start, left_stride, left_step, right, right_at, right_stride, inner,
                add,
            )  # fmt: skip
            row += 1


@block
def transpose_block(code: Code, source: Any, at: Any, stride: Any, out: Any, out_at: Any, out_stride: Any) -> None:
    """`transpose` for a block of LANES x LANES: in every pass, pairs of vectors exchange halves of smaller and smaller
    parts (Eklundh, 1972)."""
    lanes, part = range(LANES), LANES // 2
    rows = [code.load(source, code.offset(at, (stride, row))) for row in lanes]
    while part:
        upper = [j if not j & part else LANES + j - part for j in lanes]
        lower = [j + part if not j & part else LANES + j for j in lanes]
        for i in (i for i in lanes if not i & part):
            pair = rows[i], rows[i + part]
            rows[i], rows[i + part] = code.shuffle(*pair, upper), code.shuffle(*pair, lower)
        part //= 2
    for row, vector in enumerate(rows):
        code.store(vector, out, code.offset(out_at, (out_stride, row)))


@jit
def transpose(
    source: Any, at: int, stride: int, rows: int, columns: int, out: Any, out_at: int, out_stride: int
) -> None:
    """Transpose the `rows` x `columns` matrix at `source[at]`, whose rows are `stride` apart, to `out[out_at]`."""
    for row in range(0, rows, LANES):
        for column in range(0, columns, LANES):
            start, to = at + row * stride + column, out_at + column * out_stride + row
            if row + LANES <= rows and column + LANES <= columns:
                transpose_block(source, start, stride, out, to, out_stride)
                continue
            for i in range(min(LANES, rows - row)):
                for j in range(min(LANES, columns - column)):
                    out[to + j * out_stride + i] = source[start + i * stride + j]
