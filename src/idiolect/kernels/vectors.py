"""The vocabulary in which building blocks of compiled kernels are written, in LLVM's language: vectors as wide as the
processor's registers, for which numba has no words. Needs numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from zlib import crc32

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

# Numbers per vector, and vectors that fit into the registers of this processor, with a few to spare.
LANES, SUMS = (16, 24) if "+avx512f" in get_host_cpu_features() else (8, 12)  # type: ignore[no-untyped-call]
ONE = ir.IntType(64)(1)
WIDTH = ir.IntType(64)(LANES)

_NUMBER, _SMALL = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_NUMBER, LANES)
_FUSED = ("contract",)  # a product and a sum in one instruction, and nothing that would lose a NaN

Rows = tuple[tuple[float, ...], ...]
Grid = list[list[Any]]


class Code:
    """What a building block writes: vectors of arrays, at places counted in numbers, and arithmetic with them."""

    zeros = _VECTOR(None)

    def __init__(self, context: Any, builder: ir.IRBuilder, kinds: Sequence[Any], given: Sequence[Any]) -> None:
        self.builder, self.kinds = builder, kinds
        self.given = [
            context.make_array(kind)(context, builder, each).data if isinstance(kind, types.Array) else each
            for kind, each in zip(kinds, given, strict=True)
        ]

    def size(self, index: int) -> int:
        """An argument that is known when this is compiled."""
        return self.kinds[index].literal_value  # type: ignore[no-any-return]

    def place(self, start: Any, *steps: tuple[Any, int]) -> Any:
        """The place some steps, each of a length and taken a number of times, after a start."""
        for length, times in steps:
            start = self.builder.add(start, self.builder.mul(length, length.type(times)))
        return start

    def load(self, array: Any, place: Any) -> Any:
        """The vector at a place."""
        return self.builder.load(self._pointer(array, place), align=4)

    def store(self, vector: Any, array: Any, place: Any) -> None:
        """Write a vector to a place."""
        self.builder.store(vector, self._pointer(array, place), align=4)

    def _pointer(self, array: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [place]), _VECTOR.as_pointer())

    def number(self, array: Any, place: Any) -> Any:
        """The number at a place."""
        return self.builder.load(self.builder.gep(array, [place]))

    def gather(self, array: Any, place: Any, apart: Any) -> Any:
        """The vector of numbers from a place on that are so far apart."""
        vector = _VECTOR(ir.Undefined)
        for lane in range(LANES):
            number = self.number(array, self.place(place, (apart, lane)))
            vector = self.builder.insert_element(vector, number, _SMALL(lane))
        return vector

    def everywhere(self, number: Any) -> Any:
        """One number in all lanes of a vector."""
        empty = _VECTOR(ir.Undefined)
        alone = self.builder.insert_element(empty, number, _SMALL(0))
        return self.builder.shuffle_vector(alone, empty, ir.VectorType(_SMALL, LANES)(None))

    def add(self, left: Any, right: Any) -> Any:
        """A sum."""
        return self.builder.fadd(left, right)

    def add_product(self, total: Any, left: Any, right: Any) -> Any:
        """A sum and one product more."""
        return self.builder.fadd(total, self.builder.fmul(left, right, flags=_FUSED), flags=_FUSED)

    def largest(self, vectors: Sequence[Any]) -> Any:
        """The maxima of vectors; NaN if one is."""
        top, *others = vectors
        for each in others:
            above, unknown = self.builder.fcmp_ordered(">", top, each), self.builder.fcmp_unordered("!=", top, top)
            top = self.builder.select(self.builder.or_(above, unknown), top, each)
        return top

    def weighted(self, weights: Sequence[float], vectors: Sequence[Any]) -> Any:
        """The sum of vectors times constants, those times one first."""
        terms = sorted((each for each in zip(weights, vectors, strict=True) if each[0]), key=lambda term: term[0] != 1)
        constants = [_VECTOR([_NUMBER(float(np.float32(weight)))] * LANES) for weight, _ in terms]
        total = terms[0][1] if terms[0][0] == 1 else self.builder.fmul(terms[0][1], constants[0])
        for (_, vector), constant in zip(terms[1:], constants[1:], strict=True):
            total = self.add_product(total, vector, constant)
        return total

    def times(self, matrix: Rows, vectors: Sequence[Any]) -> list[Any]:
        """A matrix times a column of vectors. Neighbouring rows that differ in the signs of every second number alone
        share their two halves."""
        result: list[Any] = []
        for at, row in enumerate(matrix):
            halves = [[weight * (index % 2 == half) for index, weight in enumerate(row)] for half in (0, 1)]
            mirrored = tuple(even - odd for even, odd in zip(*halves, strict=True))
            if mirrored in matrix[at + 1 : at + 2]:
                even, odd = (self.weighted(half, vectors) for half in halves)
                result += [self.add(even, odd), self.builder.fsub(even, odd)]
            elif len(result) == at:
                result.append(self.weighted(row, vectors))
        return result

    def on_both_sides(self, matrix: Rows, grid: Grid) -> Grid:
        """matrix @ grid @ matrix.T"""
        across = [self.times(matrix, row) for row in grid]
        columns = [self.times(matrix, column) for column in zip(*across, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)]

    def sums(self, starts: Sequence[Any]) -> list[Any]:
        """Vectors that a loop adds to, in registers if there are enough of them."""
        allocate: Any = cgutils.alloca_once_value
        return [allocate(self.builder, start) for start in starts]

    def increase(self, total: Any, left: Any, right: Any) -> None:
        """Add a product to one of `sums`."""
        self.builder.store(self.add_product(self.builder.load(total), left, right), total)

    def exchanged(self, left: Any, right: Any, lanes: Sequence[int]) -> Any:
        """The vector of some lanes of two, which are counted through."""
        return self.builder.shuffle_vector(left, right, ir.VectorType(_SMALL, LANES)(lanes))

    @contextmanager
    def repeated(self, times: Any) -> Iterator[Any]:
        """A loop, whose index this gives."""
        with cgutils.for_range(self.builder, times) as loop:
            yield loop.index


def block(write: Callable[..., None]) -> Any:
    """A building block that compiled functions can call, from the function that writes it. Nothing checks that what it
    reads and writes is within its arrays."""

    @wraps(write)  # numba asks for the names of its arguments
    def typed(typing: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
            code = Code(context, builder, kinds, given)
            write(code, *code.given)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    return intrinsic(prefer_literal=True)(typed)


_FILES = ("vectors.py", "products.py", "pooled.py", "winograd.py", "dense_steps.py")
_VERSION = crc32(b"".join((Path(__file__).parent / name).read_bytes() for name in _FILES))
_LOOSE = {"contract", "reassoc", "nsz"}  # sums in any order, so that they can be vectors; no NaN is lost


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled when it is first used, and kept for the next process where there is a place for it, under a
    name that changes with every kernel: numba itself looks for changes in the function's own file alone."""
    compiler: Any = numba.njit
    function.__qualname__ += f"_{_VERSION:08x}"
    try:
        return compiler(function, cache=True, error_model="numpy", fastmath=_LOOSE)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write
        return compiler(function, error_model="numpy", fastmath=_LOOSE)  # type: ignore[no-any-return]
