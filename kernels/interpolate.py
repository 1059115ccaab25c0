"""Resize images by weighted sums of neighbouring pixels, along columns and then along rows.

x: [N, C, H, W], contiguous  ->  y: [N, C, height, width], dtype of x

Weights are float64 (interpolation_taps.py), sums accumulate in float64; between the two passes they are rounded to
the dtype of x.
"""

import numpy as np
from numba import prange

from refsd.kernels import interpolation_taps as taps
from refsd.kernels._jit import kernel


def resize_bilinear(x, height, width):
    """Resize bilinearly with half-pixel centres.

    Source: torch.nn.functional.interpolate(mode="bilinear", align_corners=False); ggml_interpolate.
    """
    H, W = x.shape[2:]
    return weighted(x, taps.linear(H, height), taps.linear(W, width))


def resize_bilinear_corners(x, height, width):
    """Resize bilinearly with aligned corners.

    Source: torch.nn.functional.interpolate(mode="bilinear", align_corners=True).
    """
    H, W = x.shape[2:]
    return weighted(x, taps.linear_corners(H, height), taps.linear_corners(W, width))


def resize_bilinear_antialias(x, height, width):
    """Resize bilinearly with antialiasing.

    Source: torch.nn.functional.interpolate(mode="bilinear", antialias=True); Pillow's BILINEAR.
    """
    H, W = x.shape[2:]
    return weighted(x, taps.triangle(H, height), taps.triangle(W, width))


def resize_bicubic(x, height, width):
    """Resize bicubically with half-pixel centres.

    Source: Keys 1981; torch.nn.functional.interpolate(mode="bicubic", align_corners=False).
    """
    H, W = x.shape[2:]
    return weighted(x, taps.cubic(H, height), taps.cubic(W, width))


def resize_bicubic_corners(x, height, width):
    """Resize bicubically with aligned corners.

    Source: Keys 1981; torch.nn.functional.interpolate(mode="bicubic", align_corners=True).
    """
    H, W = x.shape[2:]
    return weighted(x, taps.cubic_corners(H, height), taps.cubic_corners(W, width))


def resize_bicubic_antialias(x, height, width):
    """Resize bicubically with antialiasing.

    Source: torch.nn.functional.interpolate(mode="bicubic", antialias=True); Pillow's BICUBIC.
    """
    H, W = x.shape[2:]
    return weighted(x, taps.wide_cubic(H, height), taps.wide_cubic(W, width))


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
