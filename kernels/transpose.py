"""Lay numbers as the microkernel reads them: transpose blocks in registers, move rows of a panel as vectors.

LLVM leaves such loops scalar, as it cannot know that what they write is not what they read next.
"""
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from collections.abc import Callable

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from refsd.kernels._jit import kernel
from refsd.kernels.microkernel import NARROW, ROWS, lanes

_VECTOR = lanes(np.uint8) // 2  # bytes
_INDEX = ir.IntType(64)


def _transpose(x, y):
    """Compute y = x^T for ROWS rows of as many columns as a vector has lanes, n.

    x: [ROWS, n], the numbers of a row adjacent
    y: [n, ROWS], likewise, dtype of x; the result is written here, and nothing beside it
    """
    y[...] = x.T


def _move(x, y):
    """Copy x to the first rows of y; x: [m, NARROW], y: [m or more, NARROW], the numbers of a row adjacent."""
    y[: len(x)] = x


class _Array:
    """An array of the generated code, whose rows need not be adjacent."""

    def __init__(self, context, builder, kind, value):
        array = context.make_array(kind)(context, builder, value)
        self.size = kind.dtype.bitwidth // 8
        self.real = {4: ir.FloatType(), 8: ir.DoubleType()}[self.size]
        self.builder, self.begin = builder, builder.bitcast(array.data, self.real.as_pointer())
        self.rows = cgutils.unpack_tuple(builder, array.shape, 2)[0]
        self.apart = builder.udiv(cgutils.unpack_tuple(builder, array.strides, 2)[0], _INDEX(self.size))

    def _at(self, row, first, vector):
        place = self.builder.add(self.builder.mul(self.apart, row), _INDEX(first))
        return self.builder.bitcast(self.builder.gep(self.begin, [place]), vector.as_pointer())

    def load(self, row, first, count):
        return self.builder.load(self._at(row, first, ir.VectorType(self.real, count)), align=self.size)

    def store(self, vector, row, first):
        self.builder.store(vector, self._at(row, first, vector.type), align=self.size)


@intrinsic
def _transpose_in_registers(typingctx, x, y):
    """
    n rows at a time, n being the lanes of a vector. n vectors are dealt out in log2 n rounds, row i with row
    i + n/2, number by number: each round exchanges a bit of the row's index with one of the lane's.
    """
    n = _VECTOR * 8 // x.dtype.bitwidth
    places = lambda lanes: ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    low, high = (places([(i + half) // 2 + i % 2 * n for i in range(n)]) for half in (0, n))

    def generate(context, builder, _, arguments):
        read, written = (_Array(context, builder, *pair) for pair in zip((x, y), arguments, strict=True))
        nothing = ir.Constant(ir.VectorType(read.real, n), ir.Undefined)
        for first in range(0, ROWS, n):
            there = min(n, ROWS - first)
            v = [read.load(_INDEX(first + i), 0, n) for i in range(there)] + [nothing] * (n - there)
            for _ in range(n.bit_length() - 1):
                pairs = [(v[i], v[i + n // 2]) for i in range(n // 2)]
                v = [builder.shuffle_vector(*pair, half) for pair in pairs for half in (low, high)]
            for j in range(n):
                kept = builder.shuffle_vector(v[j], nothing, places(list(range(there))))
                written.store(kept, _INDEX(j), first)
        return context.get_dummy_value()

    return types.void(x, y), generate


@intrinsic
def _move_in_registers(typingctx, x, y):
    def generate(context, builder, _, arguments):
        read, written = (_Array(context, builder, *pair) for pair in zip((x, y), arguments, strict=True))
        with cgutils.for_range(builder, read.rows) as loop:
            written.store(read.load(loop.index, 0, NARROW), loop.index, 0)
        return context.get_dummy_value()

    return types.void(x, y), generate


_transpose_block: Callable[..., None] = _transpose if numba.config.DISABLE_JIT else _transpose_in_registers
move_narrow: Callable[..., None] = _move if numba.config.DISABLE_JIT else _move_in_registers


@kernel(parallel=False)
def transpose_panel(x, y):
    """Compute y = x^T: a panel of the microkernel's left operand, zero beyond the last row of x.

    x: [ROWS or fewer, K], the numbers of a row adjacent
    y: [K, ROWS], contiguous, dtype of x; the result is written here
    """
    M, K = x.shape
    n = _VECTOR // x.itemsize
    if M < ROWS or n > K:
        for k in range(K):
            for i in range(ROWS):
                y[k, i] = x[i, k] if i < M else x.dtype.type(0)
        return
    for block in range((K + n - 1) // n):
        k = min(block * n, K - n)  # the last columns, some of them once more
        _transpose_block(x[:, k : k + n], y[k : k + n])


@kernel(parallel=False)
def transpose(x, y):
    """Compute y = x^T.

    x: [M, K], the numbers of a row adjacent
    y: [K, M], likewise, dtype of x; the result is written here
    """
    M, K = x.shape
    n = _VECTOR // x.itemsize
    if M < ROWS or n > K:
        for i in range(M):
            for k in range(K):
                y[k, i] = x[i, k]
        return
    for row in range((M + ROWS - 1) // ROWS):
        i = min(row * ROWS, M - ROWS)
        for block in range((K + n - 1) // n):
            k = min(block * n, K - n)
            _transpose_block(x[i : i + ROWS, k : k + n], y[k : k + n, i : i + ROWS])
