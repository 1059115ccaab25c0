"""Three-dimensional convolution as a sum of shifted, strided volumes, a tap at a time."""

import itertools

import numpy as np


def conv3d(x, weight, bias, stride, padding, dilation=1, groups=1):
    stride, dilation = np.broadcast_to(stride, 3), np.broadcast_to(dilation, 3)
    x = np.pad(x, ((0, 0), (0, 0), *(tuple(padding[i : i + 2]) for i in (0, 2, 4))))
    N, C = x.shape[:2]
    K, taps = weight.shape[0], weight.shape[2:]
    size = [(x.shape[2 + i] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in range(3)]
    y = np.broadcast_to(bias.reshape(K, 1, 1, 1), (N, K, *size)).copy()
    for tap in itertools.product(*map(range, taps)):
        at = [
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, size, stride, strict=True)
        ]
        seen = x[:, :, *at].reshape(N, groups, C // groups, -1)
        weights = weight[:, :, *tap].reshape(groups, K // groups, C // groups)
        y += np.matmul(weights, seen).reshape(N, K, *size)
    return y
