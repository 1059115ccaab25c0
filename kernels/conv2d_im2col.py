"""Convolution as a matrix product: copy every patch to a column, then let BLAS multiply."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.convolution_geometry import each, positions
from refsd.kernels.scratch import scratch

_BUDGET = 16 << 20  # limit of the columns in memory, in bytes
_NARROW = 12  # shorter rows are copied number by number: slices of them take longer than their copies


@kernel
def im2col(x, taps, stride, before, dilation, first, cols):
    """Copy the patch under each filter position of some output rows into a column.

        cols[(c R + r) S + s, p - first, q] = x[c, p*stride + r*dilation - top, q*stride + s*dilation - left]

    x:      [C, H, W], zero outside
    taps:   (R, S); stride, dilation: (down, across); before: (top, left)
    first:  the first output row
    cols:   [C*R*S, rows, Q], dtype of x; the result is written here
    """
    C, H, W = x.shape
    R, S = taps
    down, across = stride
    _, rows, Q = cols.shape
    for c in prange(C):
        for r in range(R):
            for s in range(S):
                shift = s * dilation[1] - before[1]
                # begin <= q < end has its pixel inside the image.
                begin = min(Q, max(0, (across - 1 - shift) // across))
                end = max(begin, min(Q, (W - 1 - shift) // across + 1))
                for p in range(rows if Q < _NARROW else 0):
                    h = (first + p) * down + r * dilation[0] - before[0]
                    row, inside = cols[(c * R + r) * S + s, p], 0 <= h < H
                    for q in range(Q):
                        row[q] = x[c, h, q * across + shift] if inside and begin <= q < end else 0
                for p in range(rows if Q >= _NARROW else 0):
                    h = (first + p) * down + r * dilation[0] - before[0]
                    row = cols[(c * R + r) * S + s, p]
                    if 0 <= h < H:
                        source, to = x[c, h, max(0, begin * across + shift) :], row[begin:end]
                        row[:begin] = 0
                        if across == 1:
                            for q in range(end - begin):
                                to[q] = source[q]
                        else:
                            for q in range(end - begin):
                                to[q] = source[q * across]
                        row[end:] = 0
                    else:
                        row[:] = 0


@kernel
def add_bias(y, bias):
    """Add a bias in place: y[k, :] += bias[k].

    y:    [K, L]
    bias: [K]
    """
    for k in prange(y.shape[0]):
        for l in range(y.shape[1]):
            y[k, l] += bias[k]


def conv2d_im2col(x, weight, bias, stride, padding, dilation=1, groups=1, matmul=np.matmul):
    """Compute the convolution of conv2d.py; sums accumulate in the dtype of x, in BLAS's order.

    Each group is a separate matrix product. A 1x1 filter of stride 1 multiplies the image itself, without columns.
    Output rows are processed in blocks, so that the columns never exceed 16 MB (or those of one row).
    matmul: np.matmul or another with its arguments: then sums accumulate as it does them

    Arguments, result: as in conv2d.py.
    Error (float32): measured 3.5e-7 relative L2 on 640 channels.
    Source: Chellapilla, Puri & Simard 2006, section 2.
    """
    N, C, H, W = x.shape
    K, per_group, R, S = weight.shape
    stride, dilation = each(stride, 2), each(dilation, 2)
    P, Q = positions((H, W), padding, (R, S), stride, dilation)
    y = np.empty((N, groups, K // groups, P * Q), x.dtype)
    filters = weight.reshape(groups, K // groups, per_group * R * S)
    if R == S == 1 and stride == (1, 1) and not any(padding):
        matmul(filters, x.reshape(N, groups, per_group, H * W), out=y)
    else:
        before = (padding[0], padding[2])
        step = min(P, max(1, _BUDGET // (C * R * S * Q * x.itemsize)))
        for n in range(N):
            for first in range(0, P, step):
                rows = min(step, P - first)
                cols = scratch("im2col", (C * R * S, rows, Q), x.dtype)
                im2col(x[n], (R, S), stride, before, dilation, first, cols)
                patches = cols.reshape(groups, per_group * R * S, rows * Q)
                matmul(filters, patches, out=y[n, :, :, first * Q : (first + rows) * Q])
    y = y.reshape(N, K, P, Q)
    for n in range(N):
        add_bias(y[n].reshape(K, P * Q), bias)
    return y
