"""The logistic function and tanh as quotients of polynomials in float32."""

from collections.abc import Callable

import numpy as np

from refsd.kernels.sigmoid import sigmoid
from refsd.kernels.tanh import tanh

# Numerator in x, x^3, ..., x^9; denominator in 1, x^2, ..., x^10.
_P = (2.48287947061529e-01, 8.51377133304701e-03, 6.08574864600143e-05, 1.15627324459942e-07, 4.37031012579801e-11)
_Q = (
    *(9.93151921023180e-01, 1.16817656904453e-01, 1.70198817374094e-03),
    *(6.29106785017040e-06, 5.76102136993427e-09, 6.10247389755681e-13),
)
_BEYOND = np.float32(18)

# Its largest absolute error, in units of 2^-24: 3.7, and 2.8 where products and sums are fused.
RATIONAL_ERROR = 4.0


def rational_logistic(x):
    """y = p(x) / q(x) + 1/2 with x clipped to -18..18, y to 0..1

    x: [...], computed in float32 -> y: [...], dtype of x

    Error: absolute, measured <= 3.7 * 2^-24, so that from x = -15 down no digit of y need be right.
    Source: Eigen UnaryFunctors.h of 2018, logistic; onnxruntime mlas/lib/logistic.cpp; XLA's CPU compiler.
    """
    z = np.clip(np.asarray(x, np.float32), -_BEYOND, _BEYOND)
    square = z * z
    y = z * _horner(_P, square) / _horner(_Q, square) + np.float32(0.5)
    return np.clip(y, 0, 1).astype(x.dtype)


# tanh: numerator in x, x^3, ..., x^13; denominator in 1, x^2, x^4, x^6.
_TANH_P = (
    *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
    *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
)
_TANH_Q = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
_TANH_BEYOND = np.float32(9)


def rational_tanh(x):
    """y = p(x) / q(x), with x clipped to -9..9

    x: [...], computed in float32 -> y: [...], dtype of x

    Error: relative, measured <= 6.7 units in the last place, 5.4 where products and sums are fused; near 0 it is
    1.1 units too small on average.
    Source: Eigen MathFunctionsImpl.h, generic_fast_tanh_float; onnxruntime mlas/lib/tanh.cpp.
    """
    z = np.clip(np.asarray(x, np.float32), -_TANH_BEYOND, _TANH_BEYOND)
    square = z * z
    return (z * _horner(_TANH_P, square) / _horner(_TANH_Q, square)).astype(x.dtype)


_QUOTIENTS: dict[Callable, Callable] = {sigmoid: rational_logistic, tanh: rational_tanh}


def as_a_quotient(kernel: Callable) -> Callable:
    """Return the quotient that stands in for a kernel; the kernel itself if there is none."""
    return _QUOTIENTS.get(kernel, kernel)


def _horner(coefficients, x):
    y = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + np.float32(c)
    return y
