"""Three-dimensional convolution as its definition."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.convolution_geometry import each, positions


def conv3d(x, weight, bias, stride, padding, dilation=1, groups=1):
    """Slide filters over a stack of frames: the sum of conv2d.py with an additional axis of frames.

        y[n, k, f, p, q] = bias[k] + sum_{c, t, r, s} x[n, g C/groups + c, f*stride + t*dilation - front,
                                                        p*stride + r*dilation - top,
                                                        q*stride + s*dilation - left] weight[k, c, t, r, s]

    x:        [N, C, D, H, W], zero outside
    weight:   [K, C/groups, T, R, S]
    bias:     [K]
    stride:   one number, or (frames, down, across)
    padding:  (front, back, top, bottom, left, right); (T - 1, 0, ...) is causal: no frame sees a later one
    dilation: one number, or (frames, down, across)
    groups:   blocks of channels that do not see each other
    -> y:     [N, K, F, P, Q], dtype of x

    The sum accumulates in float64.
    Source: torch.nn.Conv3d.
    """
    stride, dilation = each(stride, 3), each(dilation, 3)
    F, P, Q = positions(x.shape[2:], padding, weight.shape[2:], stride, dilation)
    y = np.empty((x.shape[0], weight.shape[0], F, P, Q), x.dtype)
    _slide(x, weight, bias, stride, padding[::2], dilation, y)
    return y


@kernel
def _slide(x, weight, bias, stride, before, dilation, y):
    C, D, H, W = x.shape[1:]
    K, per_group, T, R, S = weight.shape
    N, _, F, P, Q = y.shape
    filters = K * per_group // C  # in a group
    for nk in prange(N * K):
        n, k = nk // K, nk % K
        first = k // filters * per_group
        for f in range(F):
            for p in range(P):
                for q in range(Q):
                    acc = 0.0
                    for c in range(per_group):
                        for t in range(T):
                            d = f * stride[0] + t * dilation[0] - before[0]
                            if 0 <= d < D:
                                for r in range(R):
                                    h = p * stride[1] + r * dilation[1] - before[1]
                                    if 0 <= h < H:
                                        for s in range(S):
                                            w = q * stride[2] + s * dilation[2] - before[2]
                                            if 0 <= w < W:
                                                acc += x[n, first + c, d, h, w] * weight[k, c, t, r, s]
                    y[n, k, f, p, q] = acc + bias[k]
