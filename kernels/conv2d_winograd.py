"""3x3 convolution in a quarter of the multiplications: Winograd's F(4x4, 3x3)."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.scratch import scratch

_BUDGET = 64 << 20  # bytes of a block of transformed filters, input or output


@kernel(contract=True)
def transform_weight(weight, u):
    """U = G g G^T for every filter g.

    weight: [K, C, 3, 3]
    u:      [36, K, C], dtype of weight, written
    """
    K, C, _, _ = weight.shape
    real = weight.dtype.type
    quarter, sixth, twelfth, twentyfourth = real(1 / 4), real(1 / 6), real(1 / 12), real(1 / 24)
    for k in prange(K):
        half = np.empty((6, 3, C), weight.dtype)
        for s in range(3):
            for c in range(C):
                g0, g1, g2 = weight[k, c, 0, s], weight[k, c, 1, s], weight[k, c, 2, s]
                half[0, s, c] = quarter * g0
                half[1, s, c] = -sixth * (g0 + g1 + g2)
                half[2, s, c] = -sixth * (g0 - g1 + g2)
                half[3, s, c] = twentyfourth * g0 + twelfth * g1 + sixth * g2
                half[4, s, c] = twentyfourth * g0 - twelfth * g1 + sixth * g2
                half[5, s, c] = g2
        for i in range(6):
            for c in range(C):
                g0, g1, g2 = half[i, 0, c], half[i, 1, c], half[i, 2, c]
                u[6 * i, k, c] = quarter * g0
                u[6 * i + 1, k, c] = -sixth * (g0 + g1 + g2)
                u[6 * i + 2, k, c] = -sixth * (g0 - g1 + g2)
                u[6 * i + 3, k, c] = twentyfourth * g0 + twelfth * g1 + sixth * g2
                u[6 * i + 4, k, c] = twentyfourth * g0 - twelfth * g1 + sixth * g2
                u[6 * i + 5, k, c] = g2


@kernel(contract=True)
def transform_input(x, top, left, first, columns, v):
    """V = B^T d B for every 6x6 patch d of some rows of tiles.

    x:         [C, H, W], zero outside
    top, left: padding, in pixels
    first:     the first row of tiles
    columns:   tiles in a row
    v:         [36, C, rows * columns], dtype of x, written
    """
    C, H, W = x.shape
    rows = v.shape[2] // columns
    real = x.dtype.type
    two, four, five = real(2), real(4), real(5)
    for c in prange(C):
        d = np.zeros((6, 4 * columns + 4), x.dtype)
        t = np.empty((6, 4 * columns + 4), x.dtype)
        phase = np.empty((4, columns + 1), x.dtype)
        for row in range(rows):
            for i in range(6):
                h = 4 * (first + row) + i - top
                if 0 <= h < H:
                    for w in range(max(0, -left), min(W, 4 * columns + 2 - left)):
                        d[i, w + left] = x[c, h, w]
                else:
                    d[i, :] = real(0)
            for w in range(4 * columns + 2):
                d0, d1, d2, d3, d4, d5 = d[0, w], d[1, w], d[2, w], d[3, w], d[4, w], d[5, w]
                t[0, w] = four * d0 - five * d2 + d4
                t[1, w] = d4 + d3 - four * (d2 + d1)
                t[2, w] = d4 - d3 - four * (d2 - d1)
                t[3, w] = d4 - d2 + two * (d3 - d1)
                t[4, w] = d4 - d2 - two * (d3 - d1)
                t[5, w] = four * d1 - five * d3 + d5
            start = row * columns
            for i in range(6):
                for q in range(columns + 1):
                    for r in range(4):
                        phase[r, q] = t[i, 4 * q + r]
                for q in range(columns):
                    d0, d1, d2, d3 = phase[0, q], phase[1, q], phase[2, q], phase[3, q]
                    d4, d5 = phase[0, q + 1], phase[1, q + 1]
                    v[6 * i, c, start + q] = four * d0 - five * d2 + d4
                    v[6 * i + 1, c, start + q] = d4 + d3 - four * (d2 + d1)
                    v[6 * i + 2, c, start + q] = d4 - d3 - four * (d2 - d1)
                    v[6 * i + 3, c, start + q] = d4 - d2 + two * (d3 - d1)
                    v[6 * i + 4, c, start + q] = d4 - d2 - two * (d3 - d1)
                    v[6 * i + 5, c, start + q] = four * d1 - five * d3 + d5


@kernel(contract=True)
def transform_output(m, bias, y, first, columns):
    """Y = A^T m A + bias for every tile m of some rows of tiles.

    m:       [36, K, rows * columns]
    bias:    [K]
    y:       [K, P, Q], the pixels of those rows written
    first:   the first row of tiles
    columns: tiles in a row
    """
    K, P, Q = y.shape
    rows = m.shape[2] // columns
    real = y.dtype.type
    two, four, eight = real(2), real(4), real(8)
    for k in prange(K):
        o = np.empty((6, 4 * columns), y.dtype)
        for row in range(rows):
            start = row * columns
            for i in range(6):
                for q in range(columns):
                    m0, m1, m2 = m[6 * i, k, start + q], m[6 * i + 1, k, start + q], m[6 * i + 2, k, start + q]
                    m3, m4, m5 = m[6 * i + 3, k, start + q], m[6 * i + 4, k, start + q], m[6 * i + 5, k, start + q]
                    plus, minus, far, apart = m1 + m2, m1 - m2, m3 + m4, m3 - m4
                    o[i, 4 * q] = m0 + plus + far
                    o[i, 4 * q + 1] = minus + two * apart
                    o[i, 4 * q + 2] = plus + four * far
                    o[i, 4 * q + 3] = minus + eight * apart + m5
            p = 4 * (first + row)
            for w in range(Q):
                plus, minus = o[1, w] + o[2, w], o[1, w] - o[2, w]
                far, apart = o[3, w] + o[4, w], o[3, w] - o[4, w]
                y[k, p, w] = o[0, w] + plus + far + bias[k]
                if p + 1 < P:
                    y[k, p + 1, w] = minus + two * apart + bias[k]
                if p + 2 < P:
                    y[k, p + 2, w] = plus + four * far + bias[k]
                if p + 3 < P:
                    y[k, p + 3, w] = minus + eight * apart + o[5, w] + bias[k]


def conv2d_winograd(x, weight, bias, padding):
    """The convolution of conv2d.py for 3x3 filters at stride 1, in tiles of 4x4 pixels.

        Y = A^T [sum_c (G g G^T) * (B^T d B)] A

    g is a filter, d a 6x6 patch of the input, * element by element: the sum over channels is 36
    matrix products, which BLAS does.

    x:       [N, C, H, W], float32 or float64
    weight:  [K, C, 3, 3]
    bias:    [K]
    padding: (top, bottom, left, right), in pixels
    -> y:    [N, K, P, Q], dtype of x

    Sums accumulate in the dtype of x. Filters and tile rows are taken in blocks: 200 MB beside y, kept.
    Source: Lavin & Gray 2015, section 4.1.2, F(4x4, 3x3) of section 4.3.
    """
    N, C, H, W = x.shape
    K = weight.shape[0]
    top, bottom, left, right = padding
    P, Q = H + top + bottom - 2, W + left + right - 2
    down, across = -(-P // 4), -(-Q // 4)
    filters = _block(K, 36 * C * x.itemsize)
    rows = _block(down, 36 * max(C, filters) * across * x.itemsize)
    y = np.empty((N, K, P, Q), x.dtype)
    for k in range(0, K, filters):
        u = scratch("winograd u", (36, min(filters, K - k), C), x.dtype)
        transform_weight(weight[k : k + filters], u)
        for n in range(N):
            for first in range(0, down, rows):
                tiles = min(rows, down - first) * across
                v = scratch("winograd v", (36, C, tiles), x.dtype)
                transform_input(x[n], top, left, first, across, v)
                m = np.matmul(u, v, out=scratch("winograd m", (36, u.shape[1], tiles), x.dtype))
                transform_output(m, bias[k : k + filters], y[n, k : k + filters], first, across)
    return y


def _block(count, size):
    """How many of `count` things of `size` bytes to take at a time, in blocks of nearly equal length."""
    blocks = -(-count * size // _BUDGET)
    return -(-count // min(count, blocks))
