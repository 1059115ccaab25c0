"""The transforms of Winograd's F(4x4, 3x3): 36 multiplications instead of 144.

The points are 0, 1, -1, 2, -2 and infinity. Their powers, up to 8, cost precision: the error is 30 to 37 units of
2^-24 (float32, relative L2 1.8e-6 to 2.2e-6) over 320 to 2560 channels; im2col has 5.4 to 5.8.

    Y = A^T [(G g G^T) * (B^T d B)] A

    B^T = [[4,  0, -5,  0, 1, 0],
           [0, -4, -4,  1, 1, 0],
           [0,  4, -4, -1, 1, 0],
           [0, -2, -1,  2, 1, 0],
           [0,  2, -1, -2, 1, 0],
           [0,  4,  0, -5, 0, 1]]

    G = [[ 1/4,     0,    0],
         [-1/6,  -1/6, -1/6],
         [-1/6,   1/6, -1/6],
         [1/24,  1/12,  1/6],
         [1/24, -1/12,  1/6],
         [   0,     0,    1]]

    A^T = [[1, 1,  1, 1,  1, 0],
           [0, 1, -1, 2, -2, 0],
           [0, 1,  1, 4,  4, 0],
           [0, 1, -1, 8, -8, 1]]

Source: Lavin & Gray 2015, section 4.3.
"""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel

_CHANNELS = 16  # per batch; keeps writes to U long and contiguous


@kernel(contract=True)
def transform_weight(weight, u):
    """U = G g G^T for every filter g.

    weight: [K, C, 3, 3]
    u:      [36, panels, C * rows], dtype of weight, written: filter k is row k % rows of panel k // rows
    """
    K, C, _, _ = weight.shape
    panels, rows = u.shape[1], u.shape[2] // C
    real = weight.dtype.type
    quarter, sixth, twelfth, twentyfourth = real(1 / 4), real(1 / 6), real(1 / 12), real(1 / 24)
    for panel in prange(panels):
        g = np.zeros((9, _CHANNELS * rows), weight.dtype)
        t = np.empty((18, _CHANNELS * rows), weight.dtype)
        for first in range(0, C, _CHANNELS):
            count = min(_CHANNELS, C - first)
            for row in range(min(rows, K - panel * rows)):
                for c in range(count):
                    for i in range(9):
                        g[i, c * rows + row] = weight[panel * rows + row, first + c, i // 3, i % 3]
            for s in range(3):
                for e in range(count * rows):
                    g0, g1, g2 = g[s, e], g[3 + s, e], g[6 + s, e]
                    t[s, e] = quarter * g0
                    t[3 + s, e] = -sixth * (g0 + g1 + g2)
                    t[6 + s, e] = -sixth * (g0 - g1 + g2)
                    t[9 + s, e] = twentyfourth * g0 + twelfth * g1 + sixth * g2
                    t[12 + s, e] = twentyfourth * g0 - twelfth * g1 + sixth * g2
                    t[15 + s, e] = g2
            for i in range(6):
                out = u[6 * i : 6 * i + 6, panel, first * rows : (first + count) * rows]
                for e in range(count * rows):
                    g0, g1, g2 = t[3 * i, e], t[3 * i + 1, e], t[3 * i + 2, e]
                    out[0, e] = quarter * g0
                    out[1, e] = -sixth * (g0 + g1 + g2)
                    out[2, e] = -sixth * (g0 - g1 + g2)
                    out[3, e] = twentyfourth * g0 + twelfth * g1 + sixth * g2
                    out[4, e] = twentyfourth * g0 - twelfth * g1 + sixth * g2
                    out[5, e] = g2


@kernel(contract=True)
def transform_input(x, before, first, rows, columns, v):
    """V = B^T d B for every 6x6 patch d of some rows of tiles.

    x:         [C, H, W], zero outside
    before:    padding (top, left), in pixels
    first:     the first row of tiles
    rows:      rows of tiles
    columns:   tiles in a row
    v:         [36, panels, C, width], dtype of x, written: tile t is lane t % width of panel t // width
    """
    C, H, W = x.shape
    top, left = before
    panels, width = v.shape[1], v.shape[3]
    tiles = rows * columns
    deep = (rows + 1) * columns
    real = x.dtype.type
    two, four, five = real(2), real(4), real(5)
    begin, end = max(0, -left), max(0, -left, min(W, 4 * columns + 2 - left))
    for c in prange(C):
        line = np.zeros(4 * columns + 4, x.dtype)
        # d[j, b * deep + a * columns + q] = x[c, 4 a + b - top, 4 q + j - left]
        d = np.empty((6, 4 * deep), x.dtype)
        for b in range(4):
            for a in range(rows + 1):
                h = 4 * (first + a) + b - top
                at = b * deep + a * columns
                if 0 <= h < H:
                    source, to = x[c, h, begin:end], line[begin + left : end + left]
                    for w in range(end - begin):
                        to[w] = source[w]
                    for q in range(columns):
                        d[0, at + q] = line[4 * q]
                        d[1, at + q] = line[4 * q + 1]
                        d[2, at + q] = line[4 * q + 2]
                        d[3, at + q] = line[4 * q + 3]
                    for q in range(columns):
                        d[4, at + q] = line[4 * q + 4]
                        d[5, at + q] = line[4 * q + 5]
                else:
                    for j in range(6):
                        for q in range(columns):
                            d[j, at + q] = real(0)
        for e in range(4 * deep):
            d0, d1, d2, d3, d4, d5 = d[0, e], d[1, e], d[2, e], d[3, e], d[4, e], d[5, e]
            d[0, e] = four * d0 - five * d2 + d4
            d[1, e] = d4 + d3 - four * (d2 + d1)
            d[2, e] = d4 - d3 - four * (d2 - d1)
            d[3, e] = d4 - d2 + two * (d3 - d1)
            d[4, e] = d4 - d2 - two * (d3 - d1)
            d[5, e] = four * d1 - five * d3 + d5
        for panel in range(panels):
            start = panel * width
            for j in range(6):
                for lane in range(min(width, tiles - start)):
                    t = start + lane
                    d0, d1, d2, d3 = d[j, t], d[j, deep + t], d[j, 2 * deep + t], d[j, 3 * deep + t]
                    d4, d5 = d[j, t + columns], d[j, deep + t + columns]
                    v[j, panel, c, lane] = four * d0 - five * d2 + d4
                    v[6 + j, panel, c, lane] = d4 + d3 - four * (d2 + d1)
                    v[12 + j, panel, c, lane] = d4 - d3 - four * (d2 - d1)
                    v[18 + j, panel, c, lane] = d4 - d2 + two * (d3 - d1)
                    v[24 + j, panel, c, lane] = d4 - d2 - two * (d3 - d1)
                    v[30 + j, panel, c, lane] = four * d1 - five * d3 + d5


@kernel(contract=True)
def transform_output(m, bias, y, first, rows, columns):
    """Y = A^T m A + bias for every tile m of some rows of tiles.

    m:       [36, >= K, >= rows * columns]
    bias:    [K]
    y:       [K, P, Q], the pixels of those rows written
    first:   the first row of tiles
    rows:    rows of tiles
    columns: tiles in a row
    """
    K, P, Q = y.shape
    tiles = rows * columns
    real = y.dtype.type
    two, four, eight = real(2), real(4), real(8)
    for k in prange(K):
        o = np.empty((24, tiles), y.dtype)
        line = np.empty(4 * tiles, y.dtype)
        for j in range(6):
            for t in range(tiles):
                m0, m1, m2 = m[j, k, t], m[6 + j, k, t], m[12 + j, k, t]
                m3, m4, m5 = m[18 + j, k, t], m[24 + j, k, t], m[30 + j, k, t]
                plus, minus, far, apart = m1 + m2, m1 - m2, m3 + m4, m3 - m4
                o[j, t] = m0 + plus + far
                o[6 + j, t] = minus + two * apart
                o[12 + j, t] = plus + four * far
                o[18 + j, t] = minus + eight * apart + m5
        for i in range(4):
            for t in range(tiles):
                m0, m1, m2 = o[6 * i, t], o[6 * i + 1, t], o[6 * i + 2, t]
                m3, m4, m5 = o[6 * i + 3, t], o[6 * i + 4, t], o[6 * i + 5, t]
                plus, minus, far, apart = m1 + m2, m1 - m2, m3 + m4, m3 - m4
                line[4 * t] = m0 + plus + far + bias[k]
                line[4 * t + 1] = minus + two * apart + bias[k]
                line[4 * t + 2] = plus + four * far + bias[k]
                line[4 * t + 3] = minus + eight * apart + m5 + bias[k]
            for row in range(rows):
                p = 4 * (first + row) + i
                if p < P:
                    for q in range(Q):
                        y[k, p, q] = line[4 * row * columns + q]
