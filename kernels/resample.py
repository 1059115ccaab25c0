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
    if factor == 2 and x.dtype in (np.float32, np.float64):
        _double(np.ascontiguousarray(x).reshape(-1, W), y.reshape(-1, 2, W * 2))
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


def resize_nearest_exact(x, height, width):
    """Copy for each new pixel the old pixel under its centre.

        y[n, c, p, q] = x[n, c, floor((p + 1/2) H / height), floor((q + 1/2) W / width)]

    x:    [N, C, H, W]
    -> y: [N, C, height, width], dtype of x

    The fractions are exact, as in resize_nearest.
    Source: torch.nn.functional.interpolate(mode="nearest-exact").
    """
    H, W = x.shape[2:]
    rows, columns = ((2 * np.arange(new) + 1) * old // (2 * new) for new, old in ((height, H), (width, W)))
    return x[:, :, rows[:, None], columns]


@kernel
def _double(rows, out):
    M, W = rows.shape
    for m in prange(M):
        for w in range(W):
            out[m, 0, 2 * w] = rows[m, w]
            out[m, 0, 2 * w + 1] = rows[m, w]
        for w in range(2 * W):
            out[m, 1, w] = out[m, 0, w]
