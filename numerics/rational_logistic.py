"""The logistic function as a quotient of polynomials in float32, whose error is absolute."""

import numpy as np

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


def _horner(coefficients, x):
    y = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + np.float32(c)
    return y
