"""The transforms of Winograd's F(2x2, 3x3): 16 multiplications instead of 36.

The points 0, 1, -1 and infinity need only sums and halves. Measured error 4.6 to 5.6 units of 2^-24 (float32,
relative L2 2.7e-7 to 3.3e-7) over 320 to 2560 channels; im2col has 5.4 to 5.8.

    Y = A^T [(G g G^T) * (B^T d B)] A

    B^T = [[1,  0, -1,  0],
           [0,  1,  1,  0],
           [0, -1,  1,  0],
           [0,  1,  0, -1]]

    G = [[  1,    0,   0],
         [1/2,  1/2, 1/2],
         [1/2, -1/2, 1/2],
         [  0,    0,   1]]

    A^T = [[1, 1,  1,  0],
           [0, 1, -1, -1]]

Source: Lavin & Gray 2015, section 4.1.
"""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel

_CHANNELS = 16  # per batch; keeps writes to U long and contiguous


@kernel(contract=True)
def transform_weight(weight, u):
    """U = G g G^T for every filter g.

    weight: [K, C, 3, 3]
    u:      [16, panels, C * rows], dtype of weight, written: filter k is row k % rows of panel k // rows
    """
    K, C, _, _ = weight.shape
    panels, rows = u.shape[1], u.shape[2] // C
    half = weight.dtype.type(0.5)
    for panel in prange(panels):
        g = np.zeros((9, _CHANNELS * rows), weight.dtype)
        t = np.empty((12, _CHANNELS * rows), weight.dtype)
        for first in range(0, C, _CHANNELS):
            count = min(_CHANNELS, C - first)
            for row in range(min(rows, K - panel * rows)):
                for c in range(count):
                    for i in range(9):
                        g[i, c * rows + row] = weight[panel * rows + row, first + c, i // 3, i % 3]
            for s in range(3):
                for e in range(count * rows):
                    g0, g1, g2 = g[s, e], g[3 + s, e], g[6 + s, e]
                    t[s, e] = g0
                    t[3 + s, e] = half * (g0 + g1 + g2)
                    t[6 + s, e] = half * (g0 - g1 + g2)
                    t[9 + s, e] = g2
            for i in range(4):
                out = u[4 * i : 4 * i + 4, panel, first * rows : (first + count) * rows]
                for e in range(count * rows):
                    g0, g1, g2 = t[3 * i, e], t[3 * i + 1, e], t[3 * i + 2, e]
                    out[0, e] = g0
                    out[1, e] = half * (g0 + g1 + g2)
                    out[2, e] = half * (g0 - g1 + g2)
                    out[3, e] = g2


@kernel(contract=True)
def transform_input(x, before, first, rows, columns, v):
    """V = B^T d B for every 4x4 patch d of some rows of tiles.

    Arguments: conv2d_winograd4.py's; v: [16, panels, C, width]
    """
    C, H, W = x.shape
    top, left = before
    panels, width = v.shape[1], v.shape[3]
    tiles = rows * columns
    deep = (rows + 1) * columns
    real = x.dtype.type
    begin, end = max(0, -left), max(0, -left, min(W, 2 * columns + 2 - left))
    for c in prange(C):
        line = np.zeros(2 * columns + 2, x.dtype)
        # d[j, b * deep + a * columns + q] = x[c, 2 a + b - top, 2 q + j - left]
        d = np.empty((4, 2 * deep), x.dtype)
        for b in range(2):
            for a in range(rows + 1):
                h = 2 * (first + a) + b - top
                at = b * deep + a * columns
                if 0 <= h < H:
                    source, to = x[c, h, begin:end], line[begin + left : end + left]
                    for w in range(end - begin):
                        to[w] = source[w]
                    for q in range(columns):
                        d[0, at + q] = line[2 * q]
                        d[1, at + q] = line[2 * q + 1]
                    for q in range(columns):
                        d[2, at + q] = line[2 * q + 2]
                        d[3, at + q] = line[2 * q + 3]
                else:
                    for j in range(4):
                        for q in range(columns):
                            d[j, at + q] = real(0)
        for e in range(2 * deep):
            d0, d1, d2, d3 = d[0, e], d[1, e], d[2, e], d[3, e]
            d[0, e] = d0 - d2
            d[1, e] = d1 + d2
            d[2, e] = d2 - d1
            d[3, e] = d1 - d3
        for panel in range(panels):
            start = panel * width
            for j in range(4):
                for lane in range(min(width, tiles - start)):
                    t = start + lane
                    d0, d1, d2, d3 = d[j, t], d[j, deep + t], d[j, t + columns], d[j, deep + t + columns]
                    v[j, panel, c, lane] = d0 - d2
                    v[4 + j, panel, c, lane] = d1 + d2
                    v[8 + j, panel, c, lane] = d2 - d1
                    v[12 + j, panel, c, lane] = d1 - d3


@kernel(contract=True)
def transform_output(m, bias, y, first, rows, columns):
    """Y = A^T m A + bias for every tile m of some rows of tiles.

    Arguments: conv2d_winograd4.py's; m: [16, >= K, >= rows * columns]
    """
    K, P, Q = y.shape
    tiles = rows * columns
    for k in prange(K):
        o = np.empty((8, tiles), y.dtype)
        line = np.empty(2 * tiles, y.dtype)
        for j in range(4):
            for t in range(tiles):
                m0, m1, m2, m3 = m[j, k, t], m[4 + j, k, t], m[8 + j, k, t], m[12 + j, k, t]
                o[j, t] = m0 + m1 + m2
                o[4 + j, t] = m1 - m2 - m3
        for i in range(2):
            for t in range(tiles):
                m0, m1, m2, m3 = o[4 * i, t], o[4 * i + 1, t], o[4 * i + 2, t], o[4 * i + 3, t]
                line[2 * t] = m0 + m1 + m2 + bias[k]
                line[2 * t + 1] = m1 - m2 - m3 + bias[k]
            for row in range(rows):
                p = 2 * (first + row) + i
                if p < P:
                    for q in range(Q):
                        y[k, p, q] = line[2 * row * columns + q]
