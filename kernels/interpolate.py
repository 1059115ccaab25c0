"""Resize images by weighted sums of neighbouring pixels, along columns and then along rows.

x: [N, C, H, W], contiguous  ->  y: [N, C, height, width], dtype of x

Weights are float64 (interpolation_taps.py), sums accumulate in float64; between the two passes they are rounded to
the dtype of x.
"""

import numpy as np
from numba import prange

from refsd.kernels import interpolation_taps as taps
from refsd.kernels._jit import kernel


def weighted(x, rows, columns):
    """Sum pixels by the taps of rows (r) and of columns (k).

    y[n, c, p, q] = sum_s r.weight[p, s] sum_t k.weight[q, t] x[n, c, r.index[p, s], k.index[q, t]]
    """
    N, C, H, W = x.shape
    P, Q = len(rows.index), len(columns.index)
    between = np.empty((N * C, P, W), x.dtype)
    _along_columns(x.reshape(-1, H, W), rows.index, rows.weight, between)
    y = np.empty((N, C, P, Q), x.dtype)
    _along_rows(between.reshape(-1, W), columns.index, columns.weight, y.reshape(-1, Q))
    return y


def resizing(taps_of):
    """Return a kernel (x, height, width, factors) -> y.

    taps_of: (old size, new size) -> the taps of an axis; where there is a factor, (old size, new size, step)
    factors: (down, across), from which height and width were rounded down; None: the new size alone says it
    """

    def resize(x, height, width, factors=None):
        H, W = x.shape[2:]
        down, across = ((), ()) if factors is None else ((1 / f,) for f in factors)
        return weighted(x, taps_of(H, height, *down), taps_of(W, width, *across))

    return resize


# torch.nn.functional.interpolate(mode="bilinear", align_corners=False), ggml_interpolate; align_corners=True;
# antialias=True, Pillow's BILINEAR.
resize_bilinear = resizing(taps.linear)
resize_bilinear_corners = resizing(taps.linear_corners)
resize_bilinear_antialias = resizing(taps.triangle)
# Keys 1981; mode="bicubic", align_corners=False; align_corners=True; antialias=True, Pillow's BICUBIC.
resize_bicubic = resizing(taps.cubic)
resize_bicubic_corners = resizing(taps.cubic_corners)
resize_bicubic_antialias = resizing(taps.wide_cubic)


@kernel
def _along_columns(x, index, weight, y):
    M, P, W = y.shape
    for row in prange(M * P):
        m, p = row // P, row % P
        for w in range(W):
            total = 0.0
            for t in range(index.shape[1]):
                total += weight[p, t] * x[m, index[p, t], w]
            y[m, p, w] = total


@kernel
def _along_rows(x, index, weight, y):
    for m in prange(y.shape[0]):
        for q in range(y.shape[1]):
            total = 0.0
            for t in range(index.shape[1]):
                total += weight[q, t] * x[m, index[q, t]]
            y[m, q] = total
