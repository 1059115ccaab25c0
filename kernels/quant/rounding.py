"""Rounding as ggml's quantizers do it."""

import numpy as np

from refsd.kernels._jit import kernel

# Added to a float32 below 2^22, 1.5 * 2^23 leaves it rounded to whole, half to even, in the sum's low bits.
_ROUND = np.float32(12582912)
_LOW_BITS = np.int32(0x7FFFFF)
_ZERO_BITS = np.int32(0x400000)


@kernel(parallel=False)
def nearest(x):
    """The whole number nearest to x, half to even. float32 -> int32

    Beyond 2^22, and for infinities, it is what the low bits of x + 1.5 * 2^23 say, as in ggml; for a NaN it is 0.
    Source: ggml-quants.c, nearest_int.
    """
    return (np.float32(x + _ROUND).view(np.int32) & _LOW_BITS) - _ZERO_BITS


@kernel(parallel=False)
def clipped(x, low, high):
    """`nearest`, kept within low .. high. -> float32"""
    return np.float32(min(max(nearest(x), np.int32(low)), np.int32(high)))


@kernel(parallel=False)
def half_away(x):
    """The whole number nearest to x, half away from zero, as C's roundf. float32 -> float32"""
    whole = np.floor(abs(x))
    if abs(x) - whole >= np.float32(0.5):
        whole += np.float32(1)
    return np.copysign(whole, x)
