"""A building block of compiled kernels that numba has no words for: sums that stay in the processor's vector registers
while many rows are added to them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .compiled import FUSED, everywhere

LANES = 8  # numbers per vector
SUMS = 12  # vectors that fit into the registers of a processor with AVX2, with a few to spare

_INDEX, _VECTOR = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)


def _add_weighted(
    typing: Any, to: Any, at: Any, to_line: Any, source: Any, start: Any, line: Any, places: Any, weights: Any,
    first: Any, end: Any, lines: Any, vectors: Any,
) -> Any:  # fmt: skip
    """Add to a block of `lines` times `vectors * LANES` numbers, `to[at ...]` with lines `to_line` apart, the blocks
    `source[start + places[i] ...]` with lines `line` apart, each times `weights[i]`, for i from `first` to `end`. The
    size of the block is fixed when this is compiled; nothing checks that blocks lie within their arrays."""
    kinds = (to, at, to_line, source, start, line, places, weights, first, end, lines, vectors)
    block = [(down, right) for down in range(lines.literal_value) for right in range(vectors.literal_value)]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        def array(index: int) -> Any:
            return context.make_array(kinds[index])(context, builder, given[index]).data

        def number(array: Any, index: Any) -> Any:
            return builder.load(builder.gep(array, [index]))

        def vectors_at(array: Any, corner: Any, apart: Any) -> list[Any]:
            starts = (
                builder.add(corner, builder.add(builder.mul(apart, _INDEX(down)), _INDEX(right * LANES)))
                for down, right in block
            )
            return [builder.bitcast(builder.gep(array, [each]), _VECTOR.as_pointer()) for each in starts]

        _, at, to_line, _, start, line, _, _, first, end, _, _ = given
        to, source, places, weights = (array(index) for index in (0, 3, 6, 7))
        ends = vectors_at(to, at, to_line)
        allocate: Any = cgutils.alloca_once_value
        sums = [allocate(builder, builder.load(each, align=4)) for each in ends]
        with cgutils.for_range_slice(builder, first, end, _INDEX(1), _INDEX) as (i, _):
            weight = everywhere(builder, number(weights, i), LANES)
            patch = vectors_at(source, builder.add(start, number(places, i)), line)
            for total, part in zip(sums, patch, strict=True):
                more = builder.fmul(builder.load(part, align=4), weight, flags=FUSED)
                builder.store(builder.fadd(builder.load(total), more, flags=FUSED), total)
        for each, total in zip(ends, sums, strict=True):
            builder.store(builder.load(total), each, align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


add_weighted: Any = intrinsic(prefer_literal=True)(_add_weighted)
