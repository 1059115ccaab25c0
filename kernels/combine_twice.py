"""Two weighted sums of the same arrays, the second of the first too: a corrector and the predictor after it."""

from numpy import empty

from refsd.kernels._jit import kernel
from refsd.kernels.combine import combine

_SHAPES = "combine_twice: the arrays differ in shape"


def combine_twice(weights, again, late, arrays):
    """Weigh arrays and add them up, twice, in one pass.

        first  = weights_0 arrays_0 + weights_1 arrays_1 + ...
        second = again first + late_0 arrays_0 + late_1 arrays_1 + ...

    weights, again, late: floats, rounded to the dtype of arrays_0
    arrays: of one shape, in any layout; the first is float32 or float64, the others are cast to its dtype
    -> first, second: new arrays, shape and dtype of arrays_0

    Products and sums are in that dtype, from left to right, without FMA. Fewer than three arrays, or more than
    seven, take a pass of combine each.
    Raises ValueError where shapes or the numbers of weights differ.
    """
    x = arrays[0]
    if not len(weights) == len(late) == len(arrays):
        raise ValueError(f"combine_twice: {len(weights)} and {len(late)} weights of {len(arrays)} arrays")
    try:
        sum_into = _BY_ARRAYS[len(arrays)]
    except KeyError:
        first = combine(*(part for term in zip(weights, arrays, strict=True) for part in term))
        return first, combine(again, first, *(part for term in zip(late, arrays, strict=True) for part in term))
    first, second = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    sum_into(first, second, *weights, again, *late, *arrays)
    return first, second


@kernel(parallel=False, inline=False)
def _combine_twice3(first, second, a, b, c, again, A, B, C, x, y, z):
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
def _combine_twice4(first, second, a, b, c, d, again, A, B, C, D, x, y, z, u):
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
def _combine_twice5(first, second, a, b, c, d, e, again, A, B, C, D, E, x, y, z, u, v):
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


@kernel(parallel=False, inline=False)
def _combine_twice6(first, second, a, b, c, d, e, f, again, A, B, C, D, E, F, x, y, z, u, v, w):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape == w.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    again, a, b, c, d, e, f = T(again), T(a), T(b), T(c), T(d), T(e), T(f)
    A, B, C, D, E, F = T(A), T(B), T(C), T(D), T(E), T(F)
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        k = T(w.flat[i])
        total = a * p + b * q + c * r + d * s + e * t + f * k
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s + E * t + F * k


@kernel(parallel=False, inline=False)
def _combine_twice7(first, second, a, b, c, d, e, f, g, again, A, B, C, D, E, F, G, x, y, z, u, v, w, o):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape == w.shape == o.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    again, a, b, c, d, e, f, g = T(again), T(a), T(b), T(c), T(d), T(e), T(f), T(g)
    A, B, C, D, E, F, G = T(A), T(B), T(C), T(D), T(E), T(F), T(G)
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        k, m = T(w.flat[i]), T(o.flat[i])
        total = a * p + b * q + c * r + d * s + e * t + f * k + g * m
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s + E * t + F * k + G * m


_BY_ARRAYS = {
    3: _combine_twice3,
    4: _combine_twice4,
    5: _combine_twice5,
    6: _combine_twice6,
    7: _combine_twice7,
}
