"""Compute a block of a matrix product in registers.

Numba has no vector type, so the loop is written in LLVM's intermediate representation: rows of
vectors as accumulators, with one multiply-add for each of them at every step.
"""
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from collections.abc import Callable

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _features() -> dict[str, bool]:
    """List the CPU features for which Numba compiles: this machine's, or those that NUMBA_CPU_FEATURES names."""
    named = numba.config.CPU_FEATURES
    if named is None:
        return llvmlite.binding.get_host_cpu_features()
    return {name[1:]: name[0] == "+" for name in named.split(",") if name}


_FEATURES = _features()
_VECTOR = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16  # bytes
_VECTORS = 2  # vectors in a row of accumulators
# Filters (the left operand) and a linear layer's weights (the right one) come from main memory. Prefetch distance
# in bytes: measured on 59 to 236 MB of filters, 267 to 369 GF/s without prefetching, 530 with it; on 64 rows by a
# weight of 1280 x 1280, 45 G/s without, 53 with it.
_AHEAD = 4096
# Accumulators fill the registers: 32 of them, or 16 on x86 before AVX-512.
ROWS = 6 if _VECTOR == 32 else 12
# A narrower block, which the widths of attention's heads (40, 64, 80, 128) are multiples of. Its accumulators still
# hide the latency of a multiply-add.
NARROW = 6 if _VECTOR == 32 else 8
_TERMS = 64  # terms in a partial sum, which is then added to the total, so that the error grows more slowly with n


def lanes(dtype) -> int:
    """Return the number of columns of the block."""
    return _VECTORS * _VECTOR // np.dtype(dtype).itemsize


def _product(a, b, y):
    """Compute y = A^T B.

    a:   [n, ROWS], contiguous, n at least 1
    b:   [n or more, lanes], contiguous
    y:   [ROWS, lanes]; the result is written here. Rows need not be adjacent

    The sum over n accumulates in the dtype of y, 64 terms at a time, with FMA if the CPU has it.
    Source: Goto & van de Geijn 2008; Van Zee & van de Geijn 2015 (the microkernel of BLIS).
    """
    y[...] = a.T @ b[: len(a)]


def _product_from(a, b, y, start):
    """Compute y = start + A^T B, the start first of all: a bias, or y itself, whose sum goes on.

    start: [ROWS, lanes]; rows need not be adjacent, and may be one and the same
    """
    y[...] = start + a.T @ b[: len(a)]


def _product_onto(a, b, y, factor):
    """Compute y = y * factor + A^T B for a block of NARROW rows; factor: [lanes], of each column.

    a: [n, NARROW], b: [n or more, lanes], y: [NARROW, lanes], as for the product
    """
    y[...] = y * factor + a.T @ b[: len(a)]


@intrinsic
def _product_in_registers(typingctx, a, b, y):
    return types.void(a, b, y), _generator((a, b, y), ROWS)


@intrinsic
def _product_from_in_registers(typingctx, a, b, y, start):
    return types.void(a, b, y, start), _generator((a, b, y, start), ROWS, fetch_right=True)


@intrinsic
def _product_onto_in_registers(typingctx, a, b, y, factor):
    return types.void(a, b, y, factor), _generator((a, b, y, factor), NARROW)


def _generator(kinds, rows, fetch_right=False):
    """Return the function that writes the block's code.

    kinds: types of the arrays a, b, y and, if the product is not to begin at zero, of the factor of y (1-D) or of
           the start (2-D)
    rows:  of the block
    fetch_right: True to fetch the right operand ahead, too; a twentieth slower if it is in the caches
    """
    y = kinds[2]
    real = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[y.dtype]
    size = y.dtype.bitwidth // 8
    count = _VECTOR // size
    vector = ir.VectorType(real, count)
    index, small, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()

    def generate(context, builder, _, arguments):
        arrays = [context.make_array(t)(context, builder, v) for t, v in zip(kinds, arguments, strict=True)]
        left, right, out, *more = (builder.bitcast(array.data, real.as_pointer()) for array in arrays)
        (n, _) = cgutils.unpack_tuple(builder, arrays[0].shape, 2)

        def at(pointer, offset):
            return builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())

        def rows_apart(array):
            (stride, _) = cgutils.unpack_tuple(builder, array.strides, 2)
            return builder.udiv(stride, index(size))

        def declare(name, result, *arguments):
            return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)

        multiply_add = declare(f"llvm.fmuladd.v{count}f{8 * size}", vector, vector, vector, vector)
        prefetch = declare("llvm.prefetch.p0", ir.VoidType(), byte, small, small, small)
        zeros = ir.Constant(ir.VectorType(small, count), [0] * count)
        zero = ir.Constant(vector, [0.0] * count)
        nothing = ir.Constant(vector, ir.Undefined)
        block = [(i, j) for i in range(rows) for j in range(_VECTORS)]
        sums, totals = ({place: cgutils.alloca_once_value(builder, zero) for place in block} for _ in range(2))
        stride_of_y = rows_apart(arrays[2])
        of_y = {
            (i, j): at(out, builder.add(builder.mul(stride_of_y, index(i)), index(j * count))) for i, j in block
        }

        def beginning(i, j):
            if not more:
                return zero
            if kinds[3].ndim == 1:
                factor = builder.load(at(more[0], index(j * count)), align=size)
                return builder.fmul(builder.load(of_y[i, j], align=size), factor)
            stride = rows_apart(arrays[3])
            place = builder.add(builder.mul(stride, index(i)), index(j * count))
            return builder.load(at(more[0], place), align=size)

        # The result is fetched, to be written, while the sums are made.
        for place in block:
            builder.call(prefetch, [builder.bitcast(of_y[place], byte), small(1), small(3), small(1)])

        def add_sums(total):
            for i, j in block:
                builder.store(builder.fadd(total(i, j), builder.load(sums[i, j])), totals[i, j])

        with cgutils.for_range_slice(builder, index(0), n, index(_TERMS)) as (start, _):
            for place in block:
                builder.store(zero, sums[place])
            left_over = builder.sub(n, start)
            terms = builder.select(builder.icmp_unsigned("<", left_over, index(_TERMS)), left_over, index(_TERMS))
            with cgutils.for_range(builder, terms) as loop:
                step = builder.add(start, loop.index)
                start_of_a, start_of_b = builder.mul(step, index(rows)), builder.mul(step, index(_VECTORS * count))
                start_of_columns = [builder.add(start_of_b, index(j * count)) for j in range(_VECTORS)]
                fetched = [(right, place) for place in start_of_columns] if fetch_right else []
                for operand, place in [(left, start_of_a), *fetched]:
                    ahead = builder.gep(operand, [builder.add(place, index(_AHEAD // size))])
                    builder.call(prefetch, [builder.bitcast(ahead, byte), small(0), small(3), small(1)])
                columns = [builder.load(at(right, place), align=size) for place in start_of_columns]
                for i in range(rows):
                    scalar = builder.load(builder.gep(left, [builder.add(start_of_a, index(i))]), align=size)
                    all_lanes = builder.shuffle_vector(
                        builder.insert_element(nothing, scalar, small(0)), nothing, zeros
                    )
                    for j in range(_VECTORS):
                        term = builder.call(multiply_add, [all_lanes, columns[j], builder.load(sums[i, j])])
                        builder.store(term, sums[i, j])
            with builder.if_else(builder.icmp_unsigned("==", start, index(0))) as (first, later):
                with first:
                    add_sums(beginning)
                with later:
                    add_sums(lambda i, j: builder.load(totals[i, j]))
        for place in block:
            builder.store(builder.load(totals[place]), of_y[place], align=size)
        return context.get_dummy_value()

    return generate


product: Callable[..., None] = _product if numba.config.DISABLE_JIT else _product_in_registers
product_from: Callable[..., None] = _product_from if numba.config.DISABLE_JIT else _product_from_in_registers
product_onto: Callable[..., None] = _product_onto if numba.config.DISABLE_JIT else _product_onto_in_registers
