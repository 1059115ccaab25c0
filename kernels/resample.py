"""Resize images by copying pixels."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


def upsample_nearest(x, factor):
    """Repeat each pixel `factor` times in both directions.

        y[n, c, h, w] = x[n, c, h // factor, w // factor]

    x:    [N, C, H, W], contiguous
    -> y: [N, C, H*factor, W*factor], dtype of x

    Source: torch.nn.functional.interpolate(mode="nearest").
    """
    N, C, H, W = x.shape
    y = np.empty((N, C, H * factor, W * factor), x.dtype)
    if x.dtype in (np.float32, np.float64):
        repeat = _double if factor == 2 else _repeat
        repeat(np.ascontiguousarray(x).reshape(-1, W), factor, y.reshape(-1, factor, W * factor))
    else:
        y.reshape(N, C, H, factor, W, factor)[...] = x[:, :, :, None, :, None]
    return y


def resize_nearest(x, height, width):
    """Copy for each new pixel the old pixel at or before its position.

        y[n, c, p, q] = x[n, c, floor(p H / height), floor(q W / width)]

    x:    [N, C, H, W]
    -> y: [N, C, height, width], dtype of x

    The fractions are exact, because integers are divided. Engines that divide floats may choose a neighbouring
    pixel if the quotient is an integer (e.g. torch: 46 pixels from 14).
    Source: torch.nn.functional.interpolate(mode="nearest").
    """
    H, W = x.shape[2:]
    return x[:, :, (np.arange(height) * H // height)[:, None], np.arange(width) * W // width]


@kernel
def _double(rows, factor, out):
    M, W = rows.shape
    for m in prange(M):
        for w in range(W):
            out[m, 0, 2 * w] = rows[m, w]
            out[m, 0, 2 * w + 1] = rows[m, w]
        for w in range(2 * W):
            out[m, 1, w] = out[m, 0, w]


@kernel
def _repeat(rows, factor, out):
    M, W = rows.shape
    for m in prange(M):
        for w in range(W):
            for i in range(factor):
                out[m, 0, w * factor + i] = rows[m, w]
        for i in range(1, factor):
            for w in range(W * factor):
                out[m, i, w] = out[m, 0, w]
