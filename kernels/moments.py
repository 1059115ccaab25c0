"""Mean and variance of a vector: float64 as exact as it gets, float32 fast."""

import numpy as np

from refsd.kernels._jit import kernel

_LANES = 64


@kernel(parallel=False, inline=False)
def _fold(lanes):
    """The sum of the lanes, halving their number. Overwrites them."""
    width = _LANES // 2
    while width:
        for i in range(width):
            lanes[i] += lanes[i + width]
        width //= 2
    return lanes[0]


@kernel(parallel=False, inline=False)
def mean_variance(x):
    """The first two moments, the variance around the mean, in a second pass.

        mean = sum_i x_i / n,  variance = sum_i (x_i - mean)^2 / n

    x:  [n]
    -> (mean, variance), float64

    Element i goes to partial sum i mod 64, all in float64: the order is fixed, yet the partial sums
    are independent, so that they become vector lanes. The sum of deviations, zero but for
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
    """The same moments of float32 numbers in one pass, around the first of them.

        d_i = x_i - x_0,  mean = x_0 + E[d],  variance = E[d^2] - E[d]^2

    x:  [n], float32
    -> (mean, variance), float64

    Each d_i is exact, both sums accumulate in float64, in an order that the CPU's vectors choose: what cancels in
    the variance costs (x_0 - mean)^2 / variance of 2^-53, which float32 sees from a first number of some 10000
    standard deviations on.
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
