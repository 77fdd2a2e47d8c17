"""Products and transposes of matrices for compiled kernels, which call no library: a block of the result stays in the
processor's vector registers while the inner dimension goes by. Arrays are flat float32. Needs numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .vectors import LANES, SUMS, WIDTH, Code, block, kept

ROWS = SUMS // 2
"""Rows of the largest blocks, which are two vectors wide."""
FEW = ROWS // 3


@block
def add_block(
    code: Code, to: Any, at: Any, to_line: Any, left: Any, left_at: Any, left_line: Any, left_step: Any, right: Any,
    right_at: Any, right_line: Any, count: Any, onto: Any, rows: Any, vectors: Any,
) -> None:  # fmt: skip
    """`multiply` for a block of `rows` times `vectors * LANES` numbers, whose size is fixed when this is compiled."""
    down, across = range(code.size(-2)), range(code.size(-1))
    places = [code.place(at, (to_line, row), (WIDTH, vector)) for row in down for vector in across]
    sums = code.sums([code.zeros] * len(places))
    with code.builder.if_then(onto):
        for total, place in zip(sums, places, strict=True):
            code.builder.store(code.load(to, place), total)
    with code.repeated(count) as i:
        start, step = code.builder.add(right_at, code.builder.mul(right_line, i)), code.builder.mul(left_step, i)
        parts = [code.load(right, code.place(start, (WIDTH, vector))) for vector in across]
        for row in down:
            head = code.builder.add(code.place(left_at, (left_line, row)), step)
            factor = code.everywhere(code.number(left, head))
            for vector, part in enumerate(parts):
                code.increase(sums[row * len(parts) + vector], part, factor)
    for total, place in zip(sums, places, strict=True):
        code.store(code.builder.load(total), to, place)


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


@block
def turn_block(code: Code, source: Any, at: Any, line: Any, to: Any, to_at: Any, to_line: Any) -> None:
    """`turn` for a square block of LANES by LANES numbers: in every round, pairs of vectors exchange the halves of
    smaller and smaller parts (Eklundh, 1972)."""
    lanes, part = range(LANES), LANES // 2
    rows = [code.load(source, code.place(at, (line, row))) for row in lanes]
    while part:
        upper = [j if not j & part else LANES + j - part for j in lanes]
        lower = [j + part if not j & part else LANES + j for j in lanes]
        for i in (i for i in lanes if not i & part):
            pair = rows[i], rows[i + part]
            rows[i], rows[i + part] = code.exchanged(*pair, upper), code.exchanged(*pair, lower)
        part //= 2
    for row, vector in enumerate(rows):
        code.store(vector, to, code.place(to_at, (to_line, row)))


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
