"""A weighted sum of arrays in one pass: what every step of a sampler is.

Each array is read once and the result written once, where NumPy's a * x + b * y writes three arrays and reads
four. At the size of a latent the call itself counts: a kernel for each number of terms, since a tuple of arrays
would cost more to hand over than the arithmetic, and no threads, since waking them costs as much again.
"""

from numpy import empty

from refsd.kernels._jit import kernel

_SHAPES = "combine: the arrays differ in shape"


def combine(a, x, b=0.0, y=None, c=0.0, z=None, d=0.0, u=None, e=0.0, v=None, f=0.0, w=None, *more):
    """Weigh arrays and add them up, from left to right.

        combine(a, x, b, y, c, z, ...) = a x + b y + c z + ...

    a, b, c: floats, rounded to the dtype of x
    x, y, z: arrays of one shape, in any layout; x is float32 or float64, the others are cast to its dtype. The last
             ones may be None: terms that are absent
    -> a new array, shape and dtype of x

    Products and sums are in the dtype of x, without FMA: each rounds once. More than six terms take a second pass.
    Error: measured <= 1.25 ULP of sum |a x| for two terms, 2.7 for six (tests/naive/combine.py).
    Raises ValueError where shapes differ.
    """
    # Written out, and not looked up by the number of arguments: that takes a tenth of a microsecond.
    out = empty(x.shape, x.dtype)
    if u is None:
        if z is not None:
            _combine3(out, a, x, b, y, c, z)
        elif y is not None:
            _combine2(out, a, x, b, y)
        else:
            _combine1(out, a, x)
    elif v is None:
        _combine4(out, a, x, b, y, c, z, d, u)
    elif w is None:
        _combine5(out, a, x, b, y, c, z, d, u, e, v)
    else:
        _combine6(out, a, x, b, y, c, z, d, u, e, v, f, w)
    return combine(1.0, out, *more) if more else out


@kernel(parallel=False, inline=False)
def _combine1(out, a, x):
    if not out.shape == x.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a = T(a)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i])


@kernel(parallel=False, inline=False)
def _combine2(out, a, x, b, y):
    if not out.shape == x.shape == y.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b = T(a), T(b)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i])


@kernel(parallel=False, inline=False)
def _combine3(out, a, x, b, y, c, z):
    if not out.shape == x.shape == y.shape == z.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c = T(a), T(b), T(c)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i])


@kernel(parallel=False, inline=False)
def _combine4(out, a, x, b, y, c, z, d, u):
    if not out.shape == x.shape == y.shape == z.shape == u.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d = T(a), T(b), T(c), T(d)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i]) + d * T(u.flat[i])


@kernel(parallel=False, inline=False)
def _combine5(out, a, x, b, y, c, z, d, u, e, v):
    if not out.shape == x.shape == y.shape == z.shape == u.shape == v.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d, e = T(a), T(b), T(c), T(d), T(e)
    for i in range(out.size):
        out.flat[i] = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i]) + d * T(u.flat[i]) + e * T(v.flat[i])


@kernel(parallel=False, inline=False)
def _combine6(out, a, x, b, y, c, z, d, u, e, v, f, w):
    if not out.shape == x.shape == y.shape == z.shape == u.shape == v.shape == w.shape:
        raise ValueError(_SHAPES)
    T = out.dtype.type
    a, b, c, d, e, f = T(a), T(b), T(c), T(d), T(e), T(f)
    for i in range(out.size):
        first = a * T(x.flat[i]) + b * T(y.flat[i]) + c * T(z.flat[i])
        out.flat[i] = first + d * T(u.flat[i]) + e * T(v.flat[i]) + f * T(w.flat[i])
