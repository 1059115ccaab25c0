"""Two-dimensional convolution as its definition."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.convolution_geometry import each, positions


def conv2d(x, weight, bias, stride, padding, dilation=1, groups=1):
    """Slide filters over an image (without flipping them: cross-correlation).

        y[n, k, p, q] = bias[k] + sum_{c, r, s} x[n, g C/groups + c, p*stride + r*dilation - top,
                                                  q*stride + s*dilation - left] weight[k, c, r, s]

    where filter k belongs to group g = k // (K/groups).

    x:        [N, C, H, W], zero outside
    weight:   [K, C/groups, R, S]
    bias:     [K]
    stride:   steps of the filter, in pixels; one number, or (down, across)
    padding:  (top, bottom, left, right), in pixels
    dilation: distance of the filter's taps, in pixels; likewise
    groups:   blocks of channels that do not see each other; C of them are a depthwise convolution
    -> y:     [N, K, P, Q], dtype of x; P = (H + top + bottom - dilation (R - 1) - 1) // stride + 1

    The sum accumulates in float64.
    Source: torch.nn.Conv2d.
    """
    stride, dilation = each(stride, 2), each(dilation, 2)
    P, Q = positions(x.shape[2:], padding, weight.shape[2:], stride, dilation)
    y = np.empty((x.shape[0], weight.shape[0], P, Q), x.dtype)
    _slide(x, weight, bias, stride, (padding[0], padding[2]), dilation, y)
    return y


@kernel
def _slide(x, weight, bias, stride, before, dilation, y):
    C, H, W = x.shape[1:]
    K, per_group, R, S = weight.shape
    N, _, P, Q = y.shape
    filters = K * per_group // C  # in a group
    for nk in prange(N * K):
        n, k = nk // K, nk % K
        first = k // filters * per_group
        for p in range(P):
            for q in range(Q):
                acc = 0.0
                for c in range(per_group):
                    for r in range(R):
                        h = p * stride[0] + r * dilation[0] - before[0]
                        if 0 <= h < H:
                            for s in range(S):
                                w = q * stride[1] + s * dilation[1] - before[1]
                                if 0 <= w < W:
                                    acc += x[n, first + c, h, w] * weight[k, c, r, s]
                y[n, k, p, q] = acc + bias[k]
