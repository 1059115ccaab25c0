"""Two weighted sums of the same arrays, the second of the first too: a corrector and the predictor after it."""

import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.combine import combine

_SHAPES = "combine_twice: the arrays differ in shape"


def combine_twice(again, *terms):
    """Weigh arrays and add them up, twice, in one pass.

        combine_twice(again, a, A, x, b, B, y, ...):
            first  = a x + b y + ...
            second = again first + A x + B y + ...

    again, a, A, b, B: floats, rounded to the dtype of x
    x, y:              arrays of one shape, in any layout; x is float32 or float64, the others are cast to its dtype
    -> first, second: new arrays, shape and dtype of x

    Products and sums are in the dtype of x, from left to right, without FMA. Fewer than three terms, or more than
    five, take a pass of combine each.
    Raises ValueError where shapes differ.
    """
    x = terms[2]
    try:
        sum_into = _BY_ARGUMENTS[len(terms)]
    except KeyError:
        first = combine(*(part for k in range(0, len(terms), 3) for part in (terms[k], terms[k + 2])))
        rest = (part for k in range(0, len(terms), 3) for part in (terms[k + 1], terms[k + 2]))
        return first, combine(again, first, *rest)
    first, second = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    sum_into(first, second, again, *terms)
    return first, second


@kernel(parallel=False, inline=False)
def _combine_twice3(first, second, again, a, A, x, b, B, y, c, C, z):
    if not first.shape == x.shape == y.shape == z.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    again, a, b, c = T(again), T(a), T(b), T(c)
    A, B, C = T(A), T(B), T(C)
    for i in range(first.size):
        p, q, r = T(x.flat[i]), T(y.flat[i]), T(z.flat[i])
        total = a * p + b * q + c * r
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r


@kernel(parallel=False, inline=False)
def _combine_twice4(first, second, again, a, A, x, b, B, y, c, C, z, d, D, u):
    if not first.shape == x.shape == y.shape == z.shape == u.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    again, a, b, c, d = T(again), T(a), T(b), T(c), T(d)
    A, B, C, D = T(A), T(B), T(C), T(D)
    for i in range(first.size):
        p, q, r, s = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i])
        total = a * p + b * q + c * r + d * s
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s


@kernel(parallel=False, inline=False)
def _combine_twice5(first, second, again, a, A, x, b, B, y, c, C, z, d, D, u, e, E, v):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    again, a, b, c, d, e = T(again), T(a), T(b), T(c), T(d), T(e)
    A, B, C, D, E = T(A), T(B), T(C), T(D), T(E)
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        total = a * p + b * q + c * r + d * s + e * t
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s + E * t


_BY_ARGUMENTS = {9: _combine_twice3, 12: _combine_twice4, 15: _combine_twice5}
