"""Compute exp from additions, multiplications and the bits of a float alone.

Such a function gives the same bits on every machine, whereas C libraries differ between versions.
A loop over it is vectorised, which a call of a library function prevents.
"""

import numpy as np

from refsd.kernels._jit import by_dtype, kernel

LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
# ln 2 in two parts; the first has so few bits that its product with an integer is exact.
_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_LN2_HI_F32 = np.float32(0.693359375)
_LN2_LO_F32 = np.float32(-2.12194440e-4)
# Adding 1.5 * 2^mantissa to a small number rounds it to an integer, in the sum's lowest bits.
_ROUND = 1.5 * 2.0**52
_ROUND_BITS = np.float64(_ROUND).view(np.int64)
_ROUND_F32 = np.float32(1.5 * 2.0**23)
_ROUND_F32_BITS = np.float32(_ROUND_F32).view(np.int32)
# With the bias of the exponent added, the sum's lowest bits are the exponent of 2^k.
_EXPONENT_F32 = np.float32(1.5 * 2.0**23 + 127)


@kernel(parallel=False)
def exp64(x):
    """Compute exp(x) in float64.

        exp(x) = 2^k exp(r),  k = round(x / ln 2),  r = x - k ln 2 in [-0.35, 0.35]

    x:    float64; -inf gives 0, NaN gives NaN
    -> y: float64

    exp(r) is its Taylor series up to r^13; the next term is 5e-18.
    Error: measured <= 1 ULP, also for subnormal results.
    Source: Cody & Waite 1980, Software Manual for the Elementary Functions, chapter 6.
    """
    x = -750.0 if x < -750.0 else (710.0 if x > 710.0 else x)
    shifted = x * LOG2E + _ROUND
    k = np.float64(shifted).view(np.int64) - _ROUND_BITS
    whole = shifted - _ROUND
    r = (x - whole * _LN2_HI) - whole * _LN2_LO
    q = 1 / 6227020800
    q = q * r + 1 / 479001600
    q = q * r + 1 / 39916800
    q = q * r + 1 / 3628800
    q = q * r + 1 / 362880
    q = q * r + 1 / 40320
    q = q * r + 1 / 5040
    q = q * r + 1 / 720
    q = q * r + 1 / 120
    q = q * r + 1 / 24
    q = q * r + 1 / 6
    q = q * r + 0.5
    y = 1.0 + (r + r * r * q)
    # 2^k in two factors: a single one could overflow, or flush a subnormal result to zero.
    half = k >> 1
    first = np.int64((half + 1023) << 52).view(np.float64)
    second = np.int64((k - half + 1023) << 52).view(np.float64)
    return y * first * second


@kernel(parallel=False, contract=True)
def _reduced32(x, low):
    """Compute k and exp(x + low - k ln 2), a polynomial of degree 7, for x in -104 .. 89."""
    shifted = x * np.float32(LOG2E) + _ROUND_F32
    k = np.float32(shifted).view(np.int32) - _ROUND_F32_BITS
    whole = shifted - _ROUND_F32
    r = ((x - whole * _LN2_HI_F32) - whole * _LN2_LO_F32) + low
    q = np.float32(1.9875691500e-4)
    q = q * r + np.float32(1.3981999507e-3)
    q = q * r + np.float32(8.3334519073e-3)
    q = q * r + np.float32(4.1665795894e-2)
    q = q * r + np.float32(1.6666665459e-1)
    q = q * r + np.float32(5.0000001201e-1)
    return k, np.float32(1.0) + (r + r * r * q)


@kernel(parallel=False)
def _power32(k):
    """Compute 2^k for k in -126 .. 127."""
    return np.int32((k + np.int32(127)) << np.int32(23)).view(np.float32)


@kernel(parallel=False, contract=True)
def exp32(x):
    """Compute exp(x) in float32, with subnormal results and overflow to infinity.

        exp(x) = 2^k exp(r),  k = round(x / ln 2),  r = x - k ln 2

    x:    float32; -inf gives 0, NaN gives NaN
    -> y: float32

    The coefficients of exp(r) are a minimax fit.
    Error: measured 1.011 ULP over all 2^32 arguments (tests/kernels/test_every_float32.py).
    Source: Cody & Waite 1980, chapter 6; coefficients: Moshier, Cephes, expf.c.
    """
    clipped = np.float32(-104.0) if x < np.float32(-104.0) else (np.float32(89.0) if x > np.float32(89.0) else x)
    k, y = _reduced32(clipped, np.float32(-0.0))
    half = k >> np.int32(1)
    # Set tiny results to zero without an underflow, which some CPUs handle a hundred times slower.
    return y * _power32(half) * (np.float32(0.0) if x < np.float32(-103.98) else _power32(k - half))


@kernel(parallel=False, contract=True)
def exp32_of_sum(x, low):
    """Compute exp(x + low) in float32 for x <= 0, where low extends the precision of x.

    x:    float32 <= 0
    low:  float32, finite and at most an ULP of x
    -> y: float32; zero if x < -87.3, so that no result is subnormal
    """
    k, y = _reduced32(np.float32(-88.0) if x < np.float32(-88.0) else x, low)
    return np.float32(0.0) if x < np.float32(-87.3) else y * _power32(k)


@kernel(parallel=False)
def exp32_flushed(x):
    """Compute exp(x) in float32 for x <= 0, with subnormal results as zero. For softmax: a tenth faster than exp32.

    x:    float32 <= 0; below -87.3, and for -inf, it gives 0
    -> y: float32

    Error: measured as in exp32.
    """
    return exp32_of_sum(x, np.float32(-0.0))


@kernel(parallel=False, contract=True)
def exp2_32_flushed(x):
    """Compute 2^x in float32 for x <= 0, as zero below 2^-126.5: 12 operations, 19 for exp.

        2^x = 2^k 2^r,  k = round(x),  r = x - k in [-0.5, 0.5], without an error

    x:    float32 <= 0; below -126.5, and for -inf, it gives 0; NaN gives NaN
    -> y: float32

    The coefficients of 2^r are a minimax fit, 0.03 ULP from it.
    Error: measured 0.952 ULP over all arguments (tests/kernels/test_every_float32.py).
    """
    clipped = np.float32(-127.0) if x < np.float32(-127.0) else x
    shifted = clipped + _EXPONENT_F32
    r = clipped - (shifted - _EXPONENT_F32)
    q = np.float32(1.5353362e-4)
    q = q * r + np.float32(1.3398875e-3)
    q = q * r + np.float32(9.6184369e-3)
    q = q * r + np.float32(5.5503324e-2)
    q = q * r + np.float32(2.4022648e-1)
    q = q * r + np.float32(6.9314718e-1)
    return (q * r + np.float32(1.0)) * np.int32(np.float32(shifted).view(np.int32) << np.int32(23)).view(np.float32)


@kernel(parallel=False)
def exp2_64(x):
    """Compute 2^x in float64 as exp(x ln 2). Error: 1 + |x| ULP at most: below an ULP of the softmax's largest."""
    return exp64(x * _LN2)


exp = by_dtype(exp32, exp64)
exp_flushed = by_dtype(exp32_flushed, exp64)
exp2_flushed = by_dtype(exp2_32_flushed, exp2_64)
