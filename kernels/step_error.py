"""Measure the difference of two solutions of a step, for an adaptive solver."""

import numpy as np

from refsd.kernels._jit import kernel

# Squares are added pairwise in blocks of this size: a fixed order that still vectorises.
_BLOCK = 1024


@kernel(parallel=False, inline=False)
def step_error(low, high, previous, atol, rtol):
    """Compute the root mean square of a difference relative to the tolerance.

        sqrt(mean(((low - high) / max(atol, rtol max(|low|, |previous|)))^2))

    low, high, previous: arrays of one shape and dtype
    -> float64

    Quotients are in the dtype of low; squares are added in float64.
    Raises ValueError if shapes differ.
    Source: Hairer, Norsett & Wanner 1993 (Solving ordinary differential equations I), eq. II.4.11.
    """
    if not low.shape == high.shape == previous.shape:
        raise ValueError("step_error: the arrays differ in shape")
    T = low.dtype.type
    atol, rtol = T(atol), T(rtol)
    squares, total = np.empty(_BLOCK), 0.0
    for start in range(0, low.size, _BLOCK):
        n = min(_BLOCK, low.size - start)
        squares[n:] = 0.0
        for i in range(n):
            a, b = abs(low.flat[start + i]), abs(previous.flat[start + i])
            delta = max(atol, rtol * max(a, b))
            ratio = np.float64((low.flat[start + i] - high.flat[start + i]) / delta)
            squares[i] = ratio * ratio
        width = _BLOCK
        while width > 1:
            width //= 2
            for i in range(width):
                squares[i] += squares[i + width]
        total += squares[0]
    return np.sqrt(total / low.size)
