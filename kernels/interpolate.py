"""Change of image size by weighted sums of neighbours, along columns and then along rows.

Where pixel p of the new size (P) stands in the old (H) is a convention: half-pixel centres, (p + 1/2) H/P - 1/2
(align_corners=False), or corners on corners, p (H - 1)/(P - 1) (align_corners=True). With antialias, shrinking
widens the filter, so that every old pixel counts.

x: [N, C, H, W], contiguous  ->  y: [N, C, height, width], dtype of x

Weights are float64, sums accumulate in float64; between the two passes they are rounded to the dtype of x.
"""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


def resize_bilinear(x, height, width):
    """Weights 1 - t and t of the two nearest, half-pixel centres; outside the picture its border goes on.

    Source: torch.nn.functional.interpolate(mode="bilinear", align_corners=False); ggml_interpolate.
    """
    H, W = x.shape[2:]
    return _resize(x, _linear(H, _half_pixel(H, height)), _linear(W, _half_pixel(W, width)))


def resize_bilinear_corners(x, height, width):
    """The same with corners on corners.

    Source: torch.nn.functional.interpolate(mode="bilinear", align_corners=True).
    """
    H, W = x.shape[2:]
    return _resize(x, _linear(H, _corners(H, height)), _linear(W, _corners(W, width)))


def resize_bicubic(x, height, width):
    """Keys' cubic of the four nearest with a = -3/4, half-pixel centres.

        |t| < 1: (a + 2)|t|^3 - (a + 3)|t|^2 + 1,  |t| < 2: a (|t|^3 - 5|t|^2 + 8|t| - 4)

    Source: Keys 1981, eq. 4; torch.nn.functional.interpolate(mode="bicubic", align_corners=False).
    """
    H, W = x.shape[2:]
    return _resize(x, _cubic(H, _half_pixel(H, height)), _cubic(W, _half_pixel(W, width)))


def resize_bicubic_corners(x, height, width):
    """The same with corners on corners.

    Source: torch.nn.functional.interpolate(mode="bicubic", align_corners=True).
    """
    H, W = x.shape[2:]
    return _resize(x, _cubic(H, _corners(H, height)), _cubic(W, _corners(W, width)))


def resize_bilinear_antialias(x, height, width):
    """A triangle as wide as the new pixels are apart, weights normalised to one.

    Source: torch.nn.functional.interpolate(mode="bilinear", antialias=True); Pillow's BILINEAR.
    """
    H, W = x.shape[2:]
    return _resize(x, _filtered(H, height, _triangle, 1.0), _filtered(W, width, _triangle, 1.0))


def resize_bicubic_antialias(x, height, width):
    """Keys' cubic with a = -1/2 as wide as the new pixels are apart, weights normalised to one.

    Source: torch.nn.functional.interpolate(mode="bicubic", antialias=True); Pillow's BICUBIC.
    """
    H, W = x.shape[2:]
    return _resize(x, _filtered(H, height, _keys_half, 2.0), _filtered(W, width, _keys_half, 2.0))


def _half_pixel(size, new):
    return (np.arange(new) + 0.5) * (size / new) - 0.5


def _corners(size, new):
    return np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)


def _linear(size, at):
    """-> index [P, 2], weight [P, 2]"""
    at = np.clip(at, 0, size - 1)
    first = np.floor(at).astype(np.int64)
    t = at - first
    return np.minimum(first[:, None] + [0, 1], size - 1), np.stack([1 - t, t], axis=1)


def _cubic(size, at):
    """-> index [P, 4], weight [P, 4]"""
    first = np.floor(at).astype(np.int64)
    index = first[:, None] + np.arange(-1, 3)
    return np.clip(index, 0, size - 1), _keys(index - at[:, None], -0.75)


def _filtered(size, new, shape, reach):
    """-> index [P, T], weight [P, T]; what lies outside the picture has no weight"""
    step = size / new
    wide = max(step, 1.0)
    centre = (np.arange(new) + 0.5) * step
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * wide + 0.5).astype(np.int64), size)
    index = first[:, None] + np.arange((last - first).max())
    weight = shape((index - centre[:, None] + 0.5) / wide) * (index < last[:, None])
    return np.minimum(index, size - 1), weight / weight.sum(axis=1, keepdims=True)


def _triangle(t):
    return np.maximum(1 - np.abs(t), 0)


def _keys_half(t):
    return _keys(t, -0.5)


def _keys(t, a):
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = (((t - 5) * t + 8) * t - 4) * a
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def _resize(x, rows, columns):
    N, C, H, W = x.shape
    between = np.empty((N * C, len(rows[0]), W), x.dtype)
    _along_columns(x.reshape(-1, H, W), *rows, between)
    y = np.empty((N, C, len(rows[0]), len(columns[0])), x.dtype)
    _along_rows(between.reshape(-1, W), *columns, y.reshape(-1, len(columns[0])))
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
