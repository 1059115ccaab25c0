"""Loops that read and write a given number of arrays once: the least work of a solver's step."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from refsd.kernels._jit import kernel


@kernel(parallel=False, inline=False)
def _read2(out, x, y):
    for i in range(out.size):
        out[i] = x[i] + y[i]


@kernel(parallel=False, inline=False)
def _read3(out, x, y, z):
    for i in range(out.size):
        out[i] = x[i] + y[i] + z[i]


@kernel(parallel=False, inline=False)
def _read4(out, x, y, z, u):
    for i in range(out.size):
        out[i] = x[i] + y[i] + z[i] + u[i]


@kernel(parallel=False, inline=False)
def _read5(out, x, y, z, u, v):
    for i in range(out.size):
        out[i] = x[i] + y[i] + z[i] + u[i] + v[i]


@kernel(parallel=False, inline=False)
def _read6(out, x, y, z, u, v, w):
    for i in range(out.size):
        out[i] = x[i] + y[i] + z[i] + u[i] + v[i] + w[i]


@kernel(parallel=False, inline=False)
def _read3_write2(out, other, x, y, z):
    for i in range(out.size):
        total = x[i] + y[i]
        out[i], other[i] = total, total + z[i]


@kernel(parallel=False, inline=False)
def _read4_write2(out, other, x, y, z, u):
    for i in range(out.size):
        total = x[i] + y[i]
        out[i], other[i] = total, total + z[i] + u[i]


@kernel(parallel=False, inline=False)
def _read5_write2(out, other, x, y, z, u, v):
    for i in range(out.size):
        total = x[i] + y[i]
        out[i], other[i] = total, total + z[i] + u[i] + v[i]


@kernel(parallel=False, inline=False)
def _read7_write2(out, other, x, y, z, u, v, w, k):
    for i in range(out.size):
        total = x[i] + y[i] + z[i] + w[i]
        out[i], other[i] = total, total + u[i] + v[i] + k[i]


# (arrays read, arrays written) -> loop
PASSES = {
    (2, 1): _read2,
    (3, 1): _read3,
    (4, 1): _read4,
    (5, 1): _read5,
    (6, 1): _read6,
    (3, 2): _read3_write2,
    (4, 2): _read4_write2,
    (5, 2): _read5_write2,
    (7, 2): _read7_write2,
}


def state_passes(passes: Sequence[str], arrays: Mapping[str, np.ndarray]) -> Callable[[], None]:
    """Return a function that makes these passes. "xd>y" reads x and d, and writes y. arrays: [n] each, by letter"""
    todo = []
    for one in passes:
        read, written = one.split(">")
        todo.append((PASSES[len(read), len(written)], [arrays[name] for name in written + read]))

    def once() -> None:
        for loop, taken in todo:
            loop(*taken)

    return once
