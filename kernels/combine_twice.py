"""Two weighted sums of the same arrays, the second of the first too: a corrector and the predictor after it."""

from numpy import empty

from refsd.kernels._jit import kernel
from refsd.kernels.combine import combine

_SHAPES = "combine_twice: the arrays differ in shape"


def combine_twice(weights, arrays):
    """Weigh arrays and add them up, twice, in one pass.

        first  = w_0 arrays_0 + ... + w_(k-1) arrays_(k-1)
        second = w_k first + w_(k+1) arrays_0 + ... + w_(2k) arrays_(k-1)

    weights: [2 k + 1] float64, a row of a table: floats one by one take longer to hand over. Rounded to the dtype
             of arrays_0
    arrays:  k of one shape, in any layout; the first is float32 or float64, the others are cast to its dtype
    -> first, second: new arrays, shape and dtype of arrays_0

    Products and sums are in that dtype, from left to right, without FMA. Fewer than three arrays, or more than
    seven, take a pass of combine each.
    Raises ValueError where shapes or the number of weights differ.
    """
    x, k = arrays[0], len(arrays)
    if len(weights) != 2 * k + 1:
        raise ValueError(f"combine_twice: {len(weights)} weights of {k} arrays, not {2 * k + 1}")
    try:
        sum_into = _BY_ARRAYS[k]
    except KeyError:
        w = [float(weight) for weight in weights]
        first = combine(*(part for term in zip(w[:k], arrays, strict=True) for part in term))
        return first, combine(
            w[k], first, *(part for term in zip(w[k + 1 :], arrays, strict=True) for part in term)
        )
    first, second = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    sum_into(first, second, weights, *arrays)
    return first, second


@kernel(parallel=False, inline=False)
def _combine_twice3(first, second, w, x, y, z):
    if not first.shape == x.shape == y.shape == z.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    a, b, c = T(w[0]), T(w[1]), T(w[2])
    again, A, B, C = T(w[3]), T(w[4]), T(w[5]), T(w[6])
    for i in range(first.size):
        p, q, r = T(x.flat[i]), T(y.flat[i]), T(z.flat[i])
        total = a * p + b * q + c * r
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r


@kernel(parallel=False, inline=False)
def _combine_twice4(first, second, w, x, y, z, u):
    if not first.shape == x.shape == y.shape == z.shape == u.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    a, b, c, d = T(w[0]), T(w[1]), T(w[2]), T(w[3])
    again, A, B, C, D = T(w[4]), T(w[5]), T(w[6]), T(w[7]), T(w[8])
    for i in range(first.size):
        p, q, r, s = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i])
        total = a * p + b * q + c * r + d * s
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s


@kernel(parallel=False, inline=False)
def _combine_twice5(first, second, w, x, y, z, u, v):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    a, b, c, d, e = T(w[0]), T(w[1]), T(w[2]), T(w[3]), T(w[4])
    again, A, B, C, D, E = T(w[5]), T(w[6]), T(w[7]), T(w[8]), T(w[9]), T(w[10])
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        total = a * p + b * q + c * r + d * s + e * t
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s + E * t


@kernel(parallel=False, inline=False)
def _combine_twice6(first, second, w, x, y, z, u, v, o):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape == o.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    a, b, c, d, e, f = T(w[0]), T(w[1]), T(w[2]), T(w[3]), T(w[4]), T(w[5])
    again, A, B, C, D, E, F = T(w[6]), T(w[7]), T(w[8]), T(w[9]), T(w[10]), T(w[11]), T(w[12])
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        k = T(o.flat[i])
        total = a * p + b * q + c * r + d * s + e * t + f * k
        first.flat[i] = total
        second.flat[i] = again * total + A * p + B * q + C * r + D * s + E * t + F * k


@kernel(parallel=False, inline=False)
def _combine_twice7(first, second, w, x, y, z, u, v, o, h):
    if not first.shape == x.shape == y.shape == z.shape == u.shape == v.shape == o.shape == h.shape:
        raise ValueError(_SHAPES)
    T = first.dtype.type
    a, b, c, d, e, f, g = T(w[0]), T(w[1]), T(w[2]), T(w[3]), T(w[4]), T(w[5]), T(w[6])
    again, A, B, C, D, E, F, G = T(w[7]), T(w[8]), T(w[9]), T(w[10]), T(w[11]), T(w[12]), T(w[13]), T(w[14])
    for i in range(first.size):
        p, q, r, s, t = T(x.flat[i]), T(y.flat[i]), T(z.flat[i]), T(u.flat[i]), T(v.flat[i])
        k, m = T(o.flat[i]), T(h.flat[i])
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
