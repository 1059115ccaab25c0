"""Separate signs from magnitudes, as the IQ2 and IQ3 formats do."""

import numba
import numpy as np

from refsd.kernels._jit import kernel


@kernel
def split_signs(x, weights, even):
    """Split x into magnitudes, and a bit for each negative x.

    x, weights: float32 [m, size]
    even:       make the number of set bits of each 8 even: if it is odd, invert the sign of the x with the least w
    x^2,
                whose magnitude becomes -|x|
    -> float32 [m, size], uint8 [m, size / 8]: bit j for element j of 8
    """
    magnitudes = np.empty(x.shape, np.float32)
    signs = np.empty((x.shape[0], x.shape[1] // 8), np.uint8)
    for g in numba.prange(x.shape[0]):
        for k in range(signs.shape[1]):
            bits, count, cheapest = 0, 0, 0
            for i in range(8):
                below = not x[g, 8 * k + i] >= 0
                magnitudes[g, 8 * k + i] = -x[g, 8 * k + i] if below else x[g, 8 * k + i]
                bits |= int(below) << i
                count += int(below)
                if _cost(x, weights, g, 8 * k + i) < _cost(x, weights, g, 8 * k + cheapest):
                    cheapest = i
            if even and count % 2:
                magnitudes[g, 8 * k + cheapest] = -magnitudes[g, 8 * k + cheapest]
                bits ^= 1 << cheapest
            signs[g, k] = bits
    return magnitudes, signs


@kernel(parallel=False)
def _cost(x, weights, g, j):
    return weights[g, j] * x[g, j] * x[g, j]
