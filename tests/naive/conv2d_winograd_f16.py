"""F(2x2, 3x3) with U, V and M in float16, a tile and a channel at a time, from the sums written out.

Lavin & Gray 2015, section 4.1; the last tile of a row or column ends with the picture.
"""

import numpy as np


def half(x):
    return np.float32(np.float16(x))


def filter_side(g0, g1, g2):
    return [g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2]


def data_side(d0, d1, d2, d3):
    return [d0 - d2, d1 + d2, d2 - d1, d1 - d3]


def result_side(m0, m1, m2, m3):
    return [m0 + m1 + m2, m1 - m2 - m3]


def twice(side, values):
    """A transform along columns, then along rows."""
    columns = np.array(side(*values), np.float32)
    return np.array(side(*columns.T), np.float32).T


def conv2d_winograd_f16(x, weight, bias, padding):
    top, bottom, left, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    N, C, H, W = x.shape
    y = np.empty((N, len(weight), H - 2, W - 2), np.float32)
    for n, k in np.ndindex(N, len(weight)):
        for p in [*range(0, H - 3, 2), H - 4]:
            for q in [*range(0, W - 3, 2), W - 4]:
                total = np.zeros((4, 4), np.float32)
                for c in range(C):
                    u = half(twice(filter_side, weight[k, c]))
                    total += u * half(twice(data_side, x[n, c, p : p + 4, q : q + 4]))
                y[n, k, p : p + 2, q : q + 2] = twice(result_side, half(total)) + bias[k]
    return y
