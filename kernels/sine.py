"""Compute cosine and sine from additions, multiplications and the bits of a float alone.

They give the same bits on every machine, and are vectorised: see exponential.py.
"""

import numpy as np

from refsd.kernels._jit import kernel

# pi / 2 in three parts; the first two have 33 bits, so that their products with integers up to 2^20 are exact.
_HALF_PI_HI = 1.57079632673412561417e00
_HALF_PI_MID = 6.07710050630396597660e-11
_HALF_PI_LO = 2.02226624879595063154e-21
_LARGEST = 1.5e6
# Adding 1.5 * 2^52 to a small number rounds it to an integer, in the sum's lowest bits.
_ROUND = 1.5 * 2.0**52
_ROUND_BITS = np.float64(_ROUND).view(np.int64)


@kernel(parallel=False)
def cos_sin64(x):
    """Compute cos(x) and sin(x) in float64.

        x = k pi/2 + r,  k = round(2 x / pi),  |r| <= pi/4:  (cos x, sin x) is (cos r, sin r) turned k quarters

    x: float64, radians, |x| <= 1.5e6; beyond, and for NaN, both are NaN
    -> (cos, sin), float64

    Both series end when a term is below 2e-18.
    Error: measured <= 1.6e-16.
    Source: Cody & Waite 1980, Software Manual for the Elementary Functions, chapter 8.
    """
    known = x if abs(x) <= _LARGEST else np.nan
    shifted = known * (2.0 / np.pi) + _ROUND
    quarter = np.float64(shifted).view(np.int64) - _ROUND_BITS
    whole = shifted - _ROUND
    r = ((known - whole * _HALF_PI_HI) - whole * _HALF_PI_MID) - whole * _HALF_PI_LO
    z = r * r
    s = 1 / 355687428096000
    s = 1 / -1307674368000 + s * z
    s = 1 / 6227020800 + s * z
    s = 1 / -39916800 + s * z
    s = 1 / 362880 + s * z
    s = 1 / -5040 + s * z
    s = 1 / 120 + s * z
    s = 1 / -6 + s * z
    sin = r + r * z * s
    c = 1 / 20922789888000
    c = 1 / -87178291200 + c * z
    c = 1 / 479001600 + c * z
    c = 1 / -3628800 + c * z
    c = 1 / 40320 + c * z
    c = 1 / -720 + c * z
    c = 1 / 24 + c * z
    cos = 1.0 - (0.5 * z - z * z * c)
    odd = quarter & 1 == 1
    first = sin if odd else cos
    second = cos if odd else sin
    return (-first if (quarter + 1) & 2 else first), (-second if quarter & 2 else second)
