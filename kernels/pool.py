"""Pooling: reduce each window of an image to one number."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


def avg_pool2d(x, kernel_size, stride, padding):
    """Average each window, including the zeros of the padding.

        y[n, c, p, q] = 1/(R S) sum_{r, s} x[n, c, p stride + r - top, q stride + s - left]

    x:           [N, C, H, W], contiguous
    kernel_size: (R, S)
    stride:      (vertical, horizontal)
    padding:     (top, left), on both sides each
    -> y:        [N, C, P, Q], dtype of x; P = floor((H + 2 top - R) / stride) + 1

    Sums accumulate in float64.
    Source: torch.nn.functional.avg_pool2d(count_include_pad=True); ggml_pool_2d, which counts the padding too.
    """
    return _pooled(x, kernel_size, stride, padding, _mean_of_all)


def avg_pool2d_inside(x, kernel_size, stride, padding):
    """Average the part of each window that lies inside the image.

    Shapes and sums: as in avg_pool2d.
    Source: torch.nn.functional.avg_pool2d(count_include_pad=False).
    """
    return _pooled(x, kernel_size, stride, padding, _mean_of_seen)


def max_pool2d(x, kernel_size, stride, padding):
    """Take the maximum of the part of each window that lies inside the image; NaN if it contains a NaN.

    Shapes: as in avg_pool2d. Padding is at most half the window, so that no window is completely outside.
    Source: torch.nn.functional.max_pool2d.
    """
    return _pooled(x, kernel_size, stride, padding, _largest)


def _pooled(x, kernel_size, stride, padding, reduce):
    N, C, H, W = x.shape
    P = (H + 2 * padding[0] - kernel_size[0]) // stride[0] + 1
    Q = (W + 2 * padding[1] - kernel_size[1]) // stride[1] + 1
    y = np.empty((N, C, P, Q), x.dtype)
    reduce(x.reshape(-1, H, W), kernel_size, stride, padding, y.reshape(-1, P, Q))
    return y


@kernel
def _mean_of_all(x, kernel_size, stride, padding, y):
    M, P, Q = y.shape
    R, S = kernel_size
    for row in prange(M * P):
        m, p = row // P, row % P
        for q in range(Q):
            total, _ = _sum(x[m], p * stride[0] - padding[0], q * stride[1] - padding[1], R, S)
            y[m, p, q] = total / (R * S)


@kernel
def _mean_of_seen(x, kernel_size, stride, padding, y):
    M, P, Q = y.shape
    R, S = kernel_size
    for row in prange(M * P):
        m, p = row // P, row % P
        for q in range(Q):
            total, count = _sum(x[m], p * stride[0] - padding[0], q * stride[1] - padding[1], R, S)
            y[m, p, q] = total / count


@kernel
def _largest(x, kernel_size, stride, padding, y):
    M, P, Q = y.shape
    R, S = kernel_size
    H, W = x.shape[1:]
    for row in prange(M * P):
        m, p = row // P, row % P
        top = p * stride[0] - padding[0]
        for q in range(Q):
            left = q * stride[1] - padding[1]
            best = x[m, max(top, 0), max(left, 0)]
            for h in range(max(top, 0), min(top + R, H)):
                for w in range(max(left, 0), min(left + S, W)):
                    if x[m, h, w] > best or x[m, h, w] != x[m, h, w]:
                        best = x[m, h, w]
            y[m, p, q] = best


@kernel(parallel=False)
def _sum(x, top, left, R, S):
    """Sum the part of a window that lies inside the image. -> (sum, count)"""
    H, W = x.shape
    total, count = 0.0, 0
    for h in range(max(top, 0), min(top + R, H)):
        for w in range(max(left, 0), min(left + S, W)):
            total += x[h, w]
            count += 1
    return total, count
