"""Two-dimensional convolution as its definition."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def conv2d(x, weight, bias, stride, padding):
    """Slide filters over an image (without flipping them: cross-correlation).

        y[n, k, p, q] = bias[k] + sum_{c, r, s} x[n, c, p*stride + r - top, q*stride + s - left] weight[k, c, r, s]

    x:       [N, C, H, W], zero outside
    weight:  [K, C, R, S]
    bias:    [K]
    stride:  steps of the filter, in pixels, in both directions
    padding: (top, bottom, left, right), in pixels
    -> y:    [N, K, P, Q], dtype of x; P = (H + top + bottom - R) // stride + 1

    The sum accumulates in float64.
    Source: torch.nn.Conv2d.
    """
    N, C, H, W = x.shape
    K, _, R, S = weight.shape
    top, bottom, left, right = padding
    P = (H + top + bottom - R) // stride + 1
    Q = (W + left + right - S) // stride + 1
    y = np.empty((N, K, P, Q), x.dtype)
    for nk in prange(N * K):
        n, k = nk // K, nk % K
        for p in range(P):
            for q in range(Q):
                acc = 0.0
                for c in range(C):
                    for r in range(R):
                        h = p * stride + r - top
                        if 0 <= h < H:
                            for s in range(S):
                                w = q * stride + s - left
                                if 0 <= w < W:
                                    acc += x[n, c, h, w] * weight[k, c, r, s]
                y[n, k, p, q] = acc + bias[k]
    return y
