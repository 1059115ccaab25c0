"""Depthwise convolution: each channel has its own filters, so it is not a matrix product."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.convolution_geometry import each, positions


def conv2d_depthwise(x, weight, bias, stride, padding, dilation=1):
    """Compute the convolution of conv2d.py with one group for each channel, one output row at a time.

    x:      [N, C, H, W]
    weight: [K, 1, R, S]; K is a multiple of C
    -> y:   [N, K, P, Q], dtype of x

    Sums start with the bias and accumulate in the dtype of x, tap by tap.
    Other arguments: as in conv2d.py.
    """
    stride, dilation = each(stride, 2), each(dilation, 2)
    P, Q = positions(x.shape[2:], padding, weight.shape[2:], stride, dilation)
    y = np.empty((x.shape[0], weight.shape[0], P, Q), x.dtype)
    _rows(x, weight, bias, stride, (padding[0], padding[2]), dilation, y)
    return y


@kernel(contract=True)
def _rows(x, weight, bias, stride, before, dilation, y):
    C, H, W = x.shape[1:]
    K, _, R, S = weight.shape
    N, _, P, Q = y.shape
    down, across = stride
    for nk in prange(N * K):
        n, k = nk // K, nk % K
        image = x[n, k * C // K]
        for p in range(P):
            row = y[n, k, p]
            for q in range(Q):
                row[q] = bias[k]
            for r in range(R):
                h = p * down + r * dilation[0] - before[0]
                if 0 <= h < H:
                    for s in range(S):
                        tap = weight[k, 0, r, s]
                        shift = s * dilation[1] - before[1]
                        # begin <= q < end has its pixel inside the image.
                        begin = min(Q, max(0, (across - 1 - shift) // across))
                        end = max(begin, min(Q, (W - 1 - shift) // across + 1))
                        source, to = image[h, max(0, begin * across + shift) :], row[begin:end]
                        if across == 1:
                            for q in range(end - begin):
                                to[q] += tap * source[q]
                        else:
                            for q in range(end - begin):
                                to[q] += tap * source[q * across]
