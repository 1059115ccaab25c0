"""Rounding as ggml's quantizers do it."""

import numpy as np

from refsd.kernels._jit import kernel

# Adding 1.5 * 2^23 to a float32 below 2^22 rounds it to an integer, half to even, in the sum's low bits.
_ROUND = np.float32(12582912)
_LOW_BITS = np.int32(0x7FFFFF)
_ZERO_BITS = np.int32(0x400000)


@kernel(parallel=False)
def nearest(x):
    """Round x to the nearest integer, half to even. float32 -> int32

    Beyond 2^22, and for infinities, the result is the low bits of x + 1.5 * 2^23, as in ggml; for NaN it is 0.
    Source: ggml-quants.c, nearest_int.
    """
    return (np.float32(x + _ROUND).view(np.int32) & _LOW_BITS) - _ZERO_BITS


@kernel(parallel=False)
def clipped(x, low, high):
    """Compute `nearest`, clipped to low .. high. -> float32"""
    return np.float32(min(max(nearest(x), np.int32(low)), np.int32(high)))


@kernel(parallel=False)
def half_away(x):
    """Round x to the nearest integer, half away from zero, as C's roundf does. float32 -> float32"""
    whole = np.floor(abs(x))
    if abs(x) - whole >= np.float32(0.5):
        whole += np.float32(1)
    return np.copysign(whole, x)
