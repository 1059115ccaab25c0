"""Mean and variance of a vector: as exact as possible for float64, fast for float32."""

import numpy as np

from refsd.kernels._jit import kernel

_LANES = 64


@kernel(parallel=False, inline=False)
def _fold(lanes):
    """Sum the lanes by repeatedly adding one half to the other. Overwrites them."""
    width = _LANES // 2
    while width:
        for i in range(width):
            lanes[i] += lanes[i + width]
        width //= 2
    return lanes[0]


@kernel(parallel=False, inline=False)
def mean_variance(x):
    """Compute mean and variance in two passes.

        mean = sum_i x_i / n,  variance = sum_i (x_i - mean)^2 / n

    x:  [n]
    -> (mean, variance), float64

    Element i goes to partial sum i mod 64, all in float64. The order is fixed, yet the partial sums
    are independent, so that they map to vector lanes. The sum of deviations, which is zero up to
    rounding, corrects the variance.
    Source: Chan, Golub & LeVeque 1983, eq. 1.7, the corrected two-pass algorithm.
    """
    n = x.size
    whole = n - n % _LANES
    lanes = np.zeros(_LANES)
    for start in range(0, whole, _LANES):
        for i in range(_LANES):
            lanes[i] += x[start + i]
    for i in range(n - whole):
        lanes[i] += x[whole + i]
    mean = _fold(lanes) / n

    lanes[:] = 0.0
    drift = np.zeros(_LANES)
    for start in range(0, whole, _LANES):
        for i in range(_LANES):
            deviation = x[start + i] - mean
            drift[i] += deviation
            lanes[i] += deviation * deviation
    for i in range(n - whole):
        deviation = x[whole + i] - mean
        drift[i] += deviation
        lanes[i] += deviation * deviation
    left = _fold(drift)
    return mean, (_fold(lanes) - left * left / n) / n


@kernel(parallel=False, contract=True, reassociate=True)
def mean_variance32(x):
    """Compute mean and variance of float32 numbers in one pass, relative to the first number.

        d_i = x_i - x_0,  mean = x_0 + E[d],  variance = E[d^2] - E[d]^2

    x:  [n], float32
    -> (mean, variance), float64

    Each d_i is exact. Both sums accumulate in float64, in an order that depends on the CPU's vectors. Cancellation
    in the variance costs a relative error of 2^-53 (x_0 - mean)^2 / variance, which only matters in float32 if x_0
    is some 10000 standard deviations from the mean.
    Source: Chan, Golub & LeVeque 1983, eq. 1.5, the shifted data algorithm.
    """
    pivot = np.float64(x[0])
    total = 0.0
    squares = 0.0
    for i in range(x.size):
        deviation = x[i] - pivot
        total += deviation
        squares += deviation * deviation
    drift = total / x.size
    return pivot + drift, max(squares / x.size - drift * drift, 0.0)
