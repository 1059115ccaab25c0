"""Convolution as one matrix product: lay out every patch as a column, then let BLAS multiply."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def im2col(x, R, S, stride, padding):
    """Copy each filter position's patch into a column.

        cols[n, (c R + r) S + s, p Q + q] = x[n, c, p*stride + r - top, q*stride + s - left]

    x:       [N, C, H, W], zero outside
    padding: (top, bottom, left, right), in pixels
    -> cols: [N, C*R*S, P*Q], dtype of x
    """
    N, C, H, W = x.shape
    top, bottom, left, right = padding
    P = (H + top + bottom - R) // stride + 1
    Q = (W + left + right - S) // stride + 1
    cols = np.zeros((N, C * R * S, P * Q), x.dtype)
    for nc in prange(N * C):
        n, c = nc // C, nc % C
        for r in range(R):
            for s in range(S):
                row = cols[n, (c * R + r) * S + s]
                for p in range(P):
                    h = p * stride + r - top
                    if 0 <= h < H:
                        for q in range(Q):
                            w = q * stride + s - left
                            if 0 <= w < W:
                                row[p * Q + q] = x[n, c, h, w]
    return cols


def conv2d_im2col(x, weight, bias, stride, padding):
    """The convolution of conv2d.py; sums accumulate in the dtype of x, in BLAS's order.

    x:       [N, C, H, W]
    weight:  [K, C, R, S]
    bias:    [K]
    padding: (top, bottom, left, right), in pixels
    -> y:    [N, K, P, Q], dtype of x
    """
    N, C, H, W = x.shape
    K, _, R, S = weight.shape
    top, bottom, left, right = padding
    P = (H + top + bottom - R) // stride + 1
    Q = (W + left + right - S) // stride + 1
    if R == S == stride == 1 and not any(padding):
        cols = x.reshape(N, C, H * W)
    else:
        cols = im2col(x, R, S, stride, padding)
    y = np.matmul(weight.reshape(K, C * R * S), cols)
    y += bias[:, None]
    return y.reshape(N, K, P, Q)
