"""Compute a weighted sum of arrays in one pass, as every step of a sampler needs.

Each array is read once and the result written once; NumPy's a * x + b * y writes three arrays and reads four. For
arrays as small as latents the overhead of the call matters: each number of terms has its own kernel, because
passing a tuple of arrays costs more than the arithmetic, and no threads are used, because waking them costs as
much.
"""

from collections.abc import Sequence

from numpy import empty, ndarray

from refsd.kernels._jit import kernel

_SHAPES = "combine: the arrays differ in shape"


def combine(weights: Sequence[float], arrays: Sequence[ndarray]) -> ndarray:
    """Add up weighted arrays, from left to right.

        y = weights_0 arrays_0 + weights_1 arrays_1 + ...

    weights: rounded to the dtype of arrays_0
    arrays:  one or more of one shape, in any layout; the first is float32 or float64, the others are cast to its
             dtype
    -> a new array, shape and dtype of arrays_0

    Products and sums are in that dtype, without FMA: each rounds once. More than six terms need a second pass.
    Error: measured <= 1.25 ULP of sum |weight array| for two terms, 2.7 for six (tests/naive/combine.py).
    Raises ValueError if shapes differ, or if the numbers of weights and arrays differ.
    """
    n = len(arrays)
    if len(weights) != n:
        raise ValueError(f"combine: {len(weights)} weights of {n} arrays")
    out = empty(arrays[0].shape, arrays[0].dtype)
    if n > _MOST:
        _COMBINE[_MOST](out, *weights[:_MOST], *arrays[:_MOST])
        return combine((1.0, *weights[_MOST:]), (out, *arrays[_MOST:]))
    _COMBINE[n](out, *weights, *arrays)
    return out


@kernel(parallel=False, inline=False)
def _combine1(out, a, x):
    if not out.shape == x.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a = T(a)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i])


@kernel(parallel=False, inline=False)
def _combine2(out, a, b, x, y):
    if not out.shape == x.shape == y.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b = T(a), T(b)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i])


@kernel(parallel=False, inline=False)
def _combine3(out, a, b, c, x, y, z):
    if not out.shape == x.shape == y.shape == z.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c = T(a), T(b), T(c)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i])


@kernel(parallel=False, inline=False)
def _combine4(out, a, b, c, d, x, y, z, u):
    if not out.shape == x.shape == y.shape == z.shape == u.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d = T(a), T(b), T(c), T(d)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i]) + d * T(u.flat[i])


@kernel(parallel=False, inline=False)
def _combine5(out, a, b, c, d, e, x, y, z, u, v):
    if not out.shape == x.shape == y.shape == z.shape == u.shape == v.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d, e = T(a), T(b), T(c), T(d), T(e)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i]) + d * T(u.flat[i]) + e * T(v.flat[i])


@kernel(parallel=False, inline=False)
def _combine6(out, a, b, c, d, e, f, x, y, z, u, v, w):
    if not out.shape == x.shape == y.shape == z.shape == u.shape == v.shape == w.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d, e, f = T(a), T(b), T(c), T(d), T(e), T(f)
    for i in range(out.size):
        first = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i])
        out.flat[i] = first + d * T(u.flat[i]) + e * T(v.flat[i]) + f * T(w.flat[i])


_COMBINE = {1: _combine1, 2: _combine2, 3: _combine3, 4: _combine4, 5: _combine5, 6: _combine6}
_MOST = max(_COMBINE)
