"""Building blocks for compiled kernels that work on whole vector registers (AVX2: 8 floats, AVX-512: 16).

numba has no vector type, so blocks that must keep vectors in registers are written in LLVM's intermediate language,
with `Code`. Used by `matmul.py`, `conv_pool.py` and `winograd.py`. Needs numba."""

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

# Floats per vector, and accumulator vectors that fit into the registers of this processor with a few to spare.
LANES, ACCUMULATORS = (16, 24) if "+avx512f" in get_host_cpu_features() else (8, 12)  # type: ignore[no-untyped-call]
ONE = ir.IntType(64)(1)
VECTOR_STEP = ir.IntType(64)(LANES)
"""The distance between neighbouring vectors, in floats."""

_FLOAT, _INT32 = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FUSED = ("contract",)  # a product and a sum may be one instruction; nothing that would lose a NaN

Matrix = tuple[tuple[float, ...], ...]
VectorGrid = list[list[Any]]


class Code:
    """Emits the instructions of one building block. Arrays are flat float32; offsets are counted in elements.

    Attributes:
        builder: llvmlite's own builder, for everything that is not about vectors.
        args: the block's arguments, arrays as pointers to their first element.
    """

    zeros = _VECTOR(None)

    def __init__(self, context: Any, builder: ir.IRBuilder, arg_types: Sequence[Any], args: Sequence[Any]) -> None:
        self.builder, self.arg_types = builder, arg_types
        self.args = [
            context.make_array(kind)(context, builder, arg).data if isinstance(kind, types.Array) else arg
            for kind, arg in zip(arg_types, args, strict=True)
        ]

    def constant(self, index: int) -> int:
        """The value of an argument that is known at compile time."""
        return self.arg_types[index].literal_value  # type: ignore[no-any-return]

    def offset(self, start: Any, *steps: tuple[Any, int]) -> Any:
        """`start` plus every stride times its count."""
        for stride, count in steps:
            start = self.builder.add(start, self.builder.mul(stride, stride.type(count)))
        return start

    def load(self, array: Any, offset: Any) -> Any:
        """Load a vector."""
        return self.builder.load(self._pointer(array, offset), align=4)

    def store(self, vector: Any, array: Any, offset: Any) -> None:
        """Store a vector."""
        self.builder.store(vector, self._pointer(array, offset), align=4)

    def _pointer(self, array: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [offset]), _VECTOR.as_pointer())

    def load_scalar(self, array: Any, offset: Any) -> Any:
        """Load one element."""
        return self.builder.load(self.builder.gep(array, [offset]))

    def gather(self, array: Any, offset: Any, stride: Any) -> Any:
        """Load a vector whose elements are `stride` apart."""
        vector = _VECTOR(ir.Undefined)
        for lane in range(LANES):
            scalar = self.load_scalar(array, self.offset(offset, (stride, lane)))
            vector = self.builder.insert_element(vector, scalar, _INT32(lane))
        return vector

    def broadcast(self, scalar: Any) -> Any:
        """A vector with one value in all lanes."""
        empty = _VECTOR(ir.Undefined)
        first = self.builder.insert_element(empty, scalar, _INT32(0))
        return self.builder.shuffle_vector(first, empty, ir.VectorType(_INT32, LANES)(None))

    def add(self, left: Any, right: Any) -> Any:
        """left + right"""
        return self.builder.fadd(left, right)

    def multiply_add(self, total: Any, left: Any, right: Any) -> Any:
        """total + left * right"""
        return self.builder.fadd(total, self.builder.fmul(left, right, flags=_FUSED), flags=_FUSED)

    def maximum(self, vectors: Sequence[Any]) -> Any:
        """The elementwise maximum of vectors; NaN where one of them is NaN."""
        top, *others = vectors
        for other in others:
            above, is_nan = self.builder.fcmp_ordered(">", top, other), self.builder.fcmp_unordered("!=", top, top)
            top = self.builder.select(self.builder.or_(above, is_nan), top, other)
        return top

    def weighted_sum(self, weights: Sequence[float], vectors: Sequence[Any]) -> Any:
        """The sum of vectors times constants; terms with the factor one come first."""
        terms = sorted((term for term in zip(weights, vectors, strict=True) if term[0]), key=lambda term: term[0] != 1)
        constants = [_VECTOR([_FLOAT(float(np.float32(weight)))] * LANES) for weight, _ in terms]
        total = terms[0][1] if terms[0][0] == 1 else self.builder.fmul(terms[0][1], constants[0])
        for (_, vector), constant in zip(terms[1:], constants[1:], strict=True):
            total = self.multiply_add(total, vector, constant)
        return total

    def transform(self, matrix: Matrix, vectors: Sequence[Any]) -> list[Any]:
        """A constant matrix times a column of vectors. Two neighbouring rows that differ only in the signs of every
        second element share the sums over even and odd columns."""
        result: list[Any] = []
        for index, row in enumerate(matrix):
            halves = [[weight * (column % 2 == half) for column, weight in enumerate(row)] for half in (0, 1)]
            mirrored = tuple(even - odd for even, odd in zip(*halves, strict=True))
            if mirrored in matrix[index + 1 : index + 2]:
                even, odd = (self.weighted_sum(half, vectors) for half in halves)
                result += [self.add(even, odd), self.builder.fsub(even, odd)]
            elif len(result) == index:
                result.append(self.weighted_sum(row, vectors))
        return result

    def transform_2d(self, matrix: Matrix, grid: VectorGrid) -> VectorGrid:
        """matrix @ grid @ matrix.T"""
        across = [self.transform(matrix, row) for row in grid]
        columns = [self.transform(matrix, column) for column in zip(*across, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)]

    def accumulators(self, starts: Sequence[Any]) -> list[Any]:
        """Variables to which a loop adds; in registers if there are enough of them."""
        allocate: Any = cgutils.alloca_once_value
        return [allocate(self.builder, start) for start in starts]

    def accumulate(self, total: Any, left: Any, right: Any) -> None:
        """Add left * right to one of the accumulators."""
        self.builder.store(self.multiply_add(self.builder.load(total), left, right), total)

    def shuffle(self, left: Any, right: Any, lanes: Sequence[int]) -> Any:
        """A vector of chosen lanes; those of `right` are numbered after those of `left`."""
        return self.builder.shuffle_vector(left, right, ir.VectorType(_INT32, LANES)(lanes))

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """A loop whose index is yielded."""
        with cgutils.for_range(self.builder, count) as loop:
            yield loop.index


def block(emit: Callable[..., None]) -> Any:
    """Turn `emit(code, *args)` into a function that compiled functions can call. Nothing checks that what it reads and
    writes lies within its arrays."""

    @wraps(emit)  # numba asks for the names of the arguments
    def typed(typing: Any, *arg_types: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            code = Code(context, builder, arg_types, args)
            emit(code, *code.args)
            return context.get_dummy_value()

        return types.void(*arg_types), generate

    return intrinsic(prefer_literal=True)(typed)


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate  # type: ignore[no-untyped-call]


_FILES = ("simd.py", "matmul.py", "conv_pool.py", "winograd.py", "dense_steps.py", "dense_operations.py")
_VERSION = crc32(b"".join((Path(__file__).parent / name).read_bytes() for name in _FILES))
_FAST_MATH = {"contract", "reassoc", "nsz"}  # sums may be reordered, so that they become vectors; no NaN is lost


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call and cache it on disk, if there is a place to write to.

    numba compiles again if the function's own file changes; the version in the function's name makes it compile again
    if any file of kernels does."""
    compiler: Any = numba.njit
    function.__qualname__ += f"_{_VERSION:08x}"
    try:
        return compiler(function, cache=True, error_model="numpy", fastmath=_FAST_MATH)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write
        return compiler(function, error_model="numpy", fastmath=_FAST_MATH)  # type: ignore[no-any-return]


@jit
def array_at(address: int, length: int) -> Any:
    """The floats that begin at an address, as an array. Compiled functions take several arrays as their addresses, so
    that they are compiled once and not again for every number of arrays."""
    return numba.carray(_pointer(address), length)  # type: ignore[attr-defined, call-arg]
