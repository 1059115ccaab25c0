"""Convolution as one matrix product: lay out every patch as a column, then let BLAS multiply."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel

_BUDGET = 16 << 20  # bytes of columns held at a time


@kernel
def im2col(x, R, S, stride, padding, first, cols):
    """Copy the patch under each filter position of some output rows into a column.

        cols[(c R + r) S + s, (p - first) Q + q] = x[c, p*stride + r - top, q*stride + s - left]

    x:       [C, H, W], zero outside
    padding: (top, bottom, left, right), in pixels
    first:   the first output row
    cols:    [C*R*S, rows*Q], dtype of x, written
    """
    C, H, W = x.shape
    top, _, left, right = padding
    Q = (W + left + right - S) // stride + 1
    rows = cols.shape[1] // Q
    for c in prange(C):
        for r in range(R):
            for s in range(S):
                # begin <= q < end has its pixel inside the image.
                begin = min(Q, max(0, (left - s + stride - 1) // stride))
                end = max(begin, min(Q, (W - 1 + left - s) // stride + 1))
                for p in range(rows):
                    h = (first + p) * stride + r - top
                    row = cols[(c * R + r) * S + s, p * Q : (p + 1) * Q]
                    if 0 <= h < H:
                        row[:begin] = 0
                        if stride == 1:
                            row[begin:end] = x[c, h, begin + s - left : end + s - left]
                        else:
                            for q in range(begin, end):
                                row[q] = x[c, h, q * stride + s - left]
                        row[end:] = 0
                    else:
                        row[:] = 0


@kernel
def add_bias(y, bias):
    """y[k, :] += bias[k], in place.

    y:    [K, L]
    bias: [K]
    """
    for k in prange(y.shape[0]):
        for l in range(y.shape[1]):
            y[k, l] += bias[k]


def conv2d_im2col(x, weight, bias, stride, padding):
    """The convolution of conv2d.py; sums accumulate in the dtype of x, in BLAS's order.

    x:       [N, C, H, W]
    weight:  [K, C, R, S]
    bias:    [K]
    padding: (top, bottom, left, right), in pixels
    -> y:    [N, K, P, Q], dtype of x

    Output rows are taken in blocks, so that the columns never exceed 16 MB (or one row's).
    Source: Chellapilla, Puri & Simard 2006, section 2.
    """
    N, C, H, W = x.shape
    K, _, R, S = weight.shape
    top, bottom, left, right = padding
    P = (H + top + bottom - R) // stride + 1
    Q = (W + left + right - S) // stride + 1
    y = np.empty((N, K, P * Q), x.dtype)
    filters = weight.reshape(K, C * R * S)
    if R == S == stride == 1 and not any(padding):
        np.matmul(filters, x.reshape(N, C, H * W), out=y)
    else:
        step = max(1, _BUDGET // (C * R * S * Q * x.itemsize))
        for n in range(N):
            for first in range(0, P, step):
                rows = min(step, P - first)
                cols = np.empty((C * R * S, rows * Q), x.dtype)
                im2col(x[n], R, S, stride, padding, first, cols)
                np.matmul(filters, cols, out=y[n, :, first * Q : (first + rows) * Q])
    for n in range(N):
        add_bias(y[n], bias)
    return y.reshape(N, K, P, Q)
