"""Products and transposes of matrices for compiled kernels, which call no library: a block of the result stays in the
processor's vector registers while the inner dimension goes by. Arrays are flat float32. Needs numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .compiled import FUSED, WIDE, everywhere, kept

LANES = 16 if WIDE else 8
"""Numbers per vector."""
ROWS = 12 if WIDE else 6
"""Rows of a block of two vectors each: sums fill the registers but for those that hold what is multiplied."""
FEW = ROWS // 3

_INDEX, _VECTOR = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)


def _add_block(
    typing: Any, to: Any, at: Any, to_line: Any, left: Any, left_at: Any, left_line: Any, left_step: Any, right: Any,
    right_at: Any, right_line: Any, count: Any, onto: Any, rows: Any, vectors: Any,
) -> Any:  # fmt: skip
    """`multiply` for a block of `rows` times `vectors * LANES` numbers. Its size is fixed when this is compiled;
    nothing checks that it lies within the arrays."""
    kinds = (to, at, to_line, left, left_at, left_line, left_step, right, right_at, right_line, count, onto)
    down, across = range(rows.literal_value), range(vectors.literal_value)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        def array(index: int) -> Any:
            return context.make_array(kinds[index])(context, builder, given[index]).data

        def lines(start: Any, apart: Any) -> list[Any]:
            return [builder.add(start, builder.mul(apart, _INDEX(row))) for row in down]

        def vectors_at(array: Any, start: Any) -> list[Any]:
            places = (builder.gep(array, [builder.add(start, _INDEX(number * LANES))]) for number in across)
            return [builder.bitcast(place, _VECTOR.as_pointer()) for place in places]

        _, at, to_line, _, left_at, left_line, left_step, _, right_at, right_line, count, onto, _, _ = given
        to, left, right = (array(index) for index in (0, 3, 7))
        ends = [each for line in lines(at, to_line) for each in vectors_at(to, line)]
        allocate: Any = cgutils.alloca_once
        sums = [allocate(builder, _VECTOR) for _ in ends]
        with builder.if_else(onto) as (increase, replace):
            with increase:
                for each, total in zip(ends, sums, strict=True):
                    builder.store(builder.load(each, align=4), total)
            with replace:
                for total in sums:
                    builder.store(_VECTOR([0.0] * LANES), total)
        heads = lines(left_at, left_line)
        with cgutils.for_range(builder, count, intp=_INDEX) as loop:
            start = builder.add(right_at, builder.mul(loop.index, right_line))
            parts = [builder.load(each, align=4) for each in vectors_at(right, start)]
            step = builder.mul(loop.index, left_step)
            for row, head in enumerate(heads):
                number = builder.load(builder.gep(left, [builder.add(head, step)]))
                factor = everywhere(builder, number, LANES)
                for total, part in zip(sums[row * len(parts) :], parts, strict=False):
                    more = builder.fmul(part, factor, flags=FUSED)
                    builder.store(builder.fadd(builder.load(total), more, flags=FUSED), total)
        for each, total in zip(ends, sums, strict=True):
            builder.store(builder.load(total), each, align=4)
        return context.get_dummy_value()

    return types.void(*kinds, rows, vectors), generate


add_block: Any = intrinsic(prefer_literal=True)(_add_block)


def strip_of(rows: int) -> Callable[..., None]:
    """`multiply` for a fixed number of rows."""

    def strip(
        to: Any, at: int, to_line: int, columns: int, left: Any, left_at: int, left_line: int, left_step: int,
        right: Any, right_at: int, right_line: int, count: int, onto: bool,
    ) -> None:  # fmt: skip
        column = 0
        while columns - column >= 2 * LANES:
            add_block(
                to, at + column, to_line, left, left_at, left_line, left_step, right, right_at + column, right_line,
                count, onto, rows, 2,
            )  # fmt: skip
            column += 2 * LANES
        while columns - column >= LANES:
            add_block(
                to, at + column, to_line, left, left_at, left_line, left_step, right, right_at + column, right_line,
                count, onto, rows, 1,
            )  # fmt: skip
            column += LANES
        for row in range(rows if column < columns else 0):
            for rest in range(column, columns):
                place = at + row * to_line + rest
                total = to[place] if onto else np.float32(0)
                for i in range(count):
                    total += left[left_at + row * left_line + i * left_step] * right[right_at + i * right_line + rest]
                to[place] = total

    return kept(strip)


many_rows, few_rows, one_row = strip_of(ROWS), strip_of(FEW), strip_of(1)


@kept
def multiply(
    to: Any, at: int, to_line: int, rows: int, columns: int, left: Any, left_at: int, left_line: int, left_step: int,
    right: Any, right_at: int, right_line: int, count: int, onto: bool,
) -> None:  # fmt: skip
    """The `rows` by `columns` numbers at `to[at]`, with lines `to_line` apart, become (or, `onto`, are increased by)
    the product of `left`, whose rows are `left_line` and columns `left_step` apart, and `right`, whose rows are
    `right_line` apart and whose columns are neighbours; `count` is the inner dimension."""
    row = 0
    while row < rows:
        where, head = at + row * to_line, left_at + row * left_line
        if rows - row >= ROWS:
            many_rows(
                to, where, to_line, columns, left, head, left_line, left_step, right, right_at, right_line, count, onto
            )
            row += ROWS
        elif rows - row >= FEW:
            few_rows(
                to, where, to_line, columns, left, head, left_line, left_step, right, right_at, right_line, count, onto
            )
            row += FEW
        else:
            one_row(
                to, where, to_line, columns, left, head, left_line, left_step, right, right_at, right_line, count, onto
            )
            row += 1


def _turn_block(typing: Any, source: Any, at: Any, line: Any, to: Any, to_at: Any, to_line: Any) -> Any:
    """`turn` for a square block of LANES by LANES numbers: in every round, pairs of vectors exchange the halves of
    smaller and smaller parts (Eklundh, 1972)."""
    kinds = (source, at, line, to, to_at, to_line)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        def places(index: int) -> list[Any]:
            array = context.make_array(kinds[index])(context, builder, given[index]).data
            starts = (builder.add(given[index + 1], builder.mul(given[index + 2], _INDEX(i))) for i in range(LANES))
            return [builder.bitcast(builder.gep(array, [start]), _VECTOR.as_pointer()) for start in starts]

        def exchanged(first: Any, second: Any, order: list[int]) -> Any:
            return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))

        block, part = [builder.load(place, align=4) for place in places(0)], LANES // 2
        while part:
            upper = [j if not j & part else LANES + j - part for j in range(LANES)]
            lower = [j + part if not j & part else LANES + j for j in range(LANES)]
            for i in (i for i in range(LANES) if not i & part):
                pair = block[i], block[i + part]
                block[i], block[i + part] = exchanged(*pair, upper), exchanged(*pair, lower)
            part //= 2
        for vector, place in zip(block, places(3), strict=True):
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


turn_block: Any = intrinsic(_turn_block)


@kept
def turn(source: Any, at: int, line: int, rows: int, columns: int, to: Any, to_at: int, to_line: int) -> None:
    """Transpose the `rows` by `columns` numbers at `source[at]`, lines `line` apart, to `to[to_at]`."""
    for row in range(0, rows, LANES):
        for column in range(0, columns, LANES):
            start, end = at + row * line + column, to_at + column * to_line + row
            if row + LANES <= rows and column + LANES <= columns:
                turn_block(source, start, line, to, end, to_line)
                continue
            for i in range(min(LANES, rows - row)):
                for j in range(min(LANES, columns - column)):
                    to[end + j * to_line + i] = source[start + i * line + j]
