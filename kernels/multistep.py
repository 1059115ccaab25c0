"""A linear multistep method's step: the slope of an ODE, kept for the steps to come, and the move along several."""

from typing import Any

from numpy import empty

from refsd.kernels._jit import kernel
from refsd.kernels.combine import combine

_SHAPES = "multistep: the arrays differ in shape"


def multistep(x, denoised, sigma, weights, slopes):
    """Move x along its slope and those of the steps before, in one pass.

        d = (x - denoised) / sigma
        x <- x + w_0 d + w_1 d_1 + w_2 d_2 + ...

    x, denoised: arrays of one shape, in any layout; x is float32 or float64, the others are cast to its dtype
    weights:     of d, d_1, ...: floats, rounded to the dtype of x
    slopes:      d_1, d_2, ...: one less than weights, newest first
    -> x, d: new arrays, shape and dtype of x

    Sums are in the dtype of x, from left to right, without FMA; d is (x - denoised) times the rounded 1 / sigma.
    More than four weights take a pass of combine each for d and x.
    Raises ValueError where shapes differ.
    Source: Bashforth & Adams 1883.
    """
    if len(weights) != len(slopes) + 1:
        raise ValueError(f"multistep: {len(weights)} weights of {len(slopes)} slopes and the newest")
    if len(weights) > 4:
        d = combine(1 / sigma, x, -1 / sigma, denoised)
        terms: list[Any] = [part for term in zip(weights, (d, *slopes), strict=True) for part in term]
        return combine(1.0, x, *terms), d
    moved, d = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    _MULTISTEP[len(weights)](moved, d, x, denoised, 1 / sigma, *weights, *slopes)
    return moved, d


@kernel(parallel=False, inline=False)
def _multistep1(moved, d, x, denoised, s, a):
    if not moved.shape == x.shape == denoised.shape:
        raise ValueError(_SHAPES)
    T = moved.dtype.type
    s, a = T(s), T(a)
    for i in range(moved.size):
        slope = (x.flat[i] - T(denoised.flat[i])) * s
        d.flat[i] = slope
        moved.flat[i] = x.flat[i] + a * slope


@kernel(parallel=False, inline=False)
def _multistep2(moved, d, x, denoised, s, a, b, y):
    if not moved.shape == x.shape == denoised.shape == y.shape:
        raise ValueError(_SHAPES)
    T = moved.dtype.type
    s, a, b = T(s), T(a), T(b)
    for i in range(moved.size):
        slope = (x.flat[i] - T(denoised.flat[i])) * s
        d.flat[i] = slope
        moved.flat[i] = x.flat[i] + a * slope + b * T(y.flat[i])


@kernel(parallel=False, inline=False)
def _multistep3(moved, d, x, denoised, s, a, b, c, y, z):
    if not moved.shape == x.shape == denoised.shape == y.shape == z.shape:
        raise ValueError(_SHAPES)
    T = moved.dtype.type
    s, a, b, c = T(s), T(a), T(b), T(c)
    for i in range(moved.size):
        slope = (x.flat[i] - T(denoised.flat[i])) * s
        d.flat[i] = slope
        moved.flat[i] = x.flat[i] + a * slope + b * T(y.flat[i]) + c * T(z.flat[i])


@kernel(parallel=False, inline=False)
def _multistep4(moved, d, x, denoised, s, a, b, c, e, y, z, u):
    if not moved.shape == x.shape == denoised.shape == y.shape == z.shape == u.shape:
        raise ValueError(_SHAPES)
    T = moved.dtype.type
    s, a, b, c, e = T(s), T(a), T(b), T(c), T(e)
    for i in range(moved.size):
        slope = (x.flat[i] - T(denoised.flat[i])) * s
        d.flat[i] = slope
        moved.flat[i] = x.flat[i] + a * slope + b * T(y.flat[i]) + c * T(z.flat[i]) + e * T(u.flat[i])


_MULTISTEP = {1: _multistep1, 2: _multistep2, 3: _multistep3, 4: _multistep4}
