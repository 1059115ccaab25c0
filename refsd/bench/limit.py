"""Measure the machine's limit: multiply-adds and copied bytes per second; count a model's multiplications.

A contender's time divided into the limit's is its share of what the machine can do. Only the multiplications of
convolutions, linear layers and attention are counted, as refsd's algorithms make them: Winograd's F(4x4, 3x3) makes
36 where the definition has 144. A contender with another algorithm may need more or fewer.
"""

import time
from math import prod

import numba
import numpy as np
from numba import prange

from refsd.bench.memory_copy import copy_into
from refsd.kernels._jit import kernel
from refsd.kernels.conv2d_fast import choose
from refsd.kernels.conv2d_winograd import Filters
from refsd.kernels.convolution_geometry import each, positions
from refsd.kernels.microkernel import ROWS, lanes, product
from refsd.numerics.arithmetic import Arithmetic

_TERMS = 128  # both operands of a block then fit into a first-level cache of 32 KiB
_BLOCKS = 20_000  # blocks of a thread in one measurement: some 20 ms
_BYTES = 256 << 20  # of a copy: far more than the caches hold
_TRIES = 5


class CountedArithmetic(Arithmetic):
    """An Arithmetic that counts the multiplications of its products in `multiplications`."""

    multiplications = 0

    def linear(self, x, weight, bias=None, weight_type: str = "f32"):
        self.multiplications += x.size * weight.shape[0]
        return super().linear(x, weight, bias, weight_type)

    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        self.multiplications += _of_conv2d(x.shape, weight, len(bias), (stride, padding, dilation, groups))
        return super().conv2d(x, weight, bias, stride, padding, dilation, groups)

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        B, L, H, D = q.shape
        self.multiplications += B * H * L * k.shape[1] * (D + v.shape[3])
        return super().attention(q, k, v, scale, mask, diagonal, sinks)


def _of_conv2d(x_shape, weight, K: int, geometry) -> int:
    stride, padding, dilation, groups = geometry
    N, C, H, W = x_shape
    if isinstance(weight, Filters):
        tile, filter_shape = weight.tile, (3, 3)
    else:
        tile = choose(x_shape, weight.shape, stride, padding, dilation, groups, kept=False).tile
        filter_shape = weight.shape[2:]
    P, Q = positions((H, W), padding, filter_shape, each(stride, 2), each(dilation, 2))
    if tile:
        return N * K * C * -(-P // tile) * -(-Q // tile) * (tile + 2) ** 2
    return N * K * (C // groups) * prod(filter_shape) * P * Q


@kernel
def _multiply(a, b, y, times):
    """Compute y[thread] = a^T b on each thread, over and over.

    a: [n, ROWS], b: [n, lanes], y: [threads, ROWS, lanes]
    """
    for thread in prange(y.shape[0]):
        for _ in range(times):
            product(a, b, y[thread])


def multiplications_per_second() -> float:
    """Measure how many float32 multiply-adds all threads make per second, from registers and first-level cache."""
    rng = np.random.default_rng(0)
    threads, width = numba.get_num_threads(), lanes(np.float32)
    a = rng.standard_normal((_TERMS + 4096 // (4 * ROWS), ROWS), np.float32)[:_TERMS]
    b = rng.standard_normal((_TERMS, width), np.float32)
    y = np.zeros((threads, ROWS, width), np.float32)
    _multiply(a, b, y, 1)
    return threads * _BLOCKS * _TERMS * ROWS * width / _fastest(lambda: _multiply(a, b, y, _BLOCKS))


def bytes_per_second() -> float:
    """Measure how many bytes all threads read and write per second in a copy of 256 MiB."""
    x = np.zeros(_BYTES // 4, np.float32)
    y = np.ones_like(x)
    return 2 * _BYTES / _fastest(lambda: copy_into(x, y))


def _fastest(run) -> float:
    seconds = []
    for _ in range(_TRIES):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
