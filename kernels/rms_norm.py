"""Root-mean-square normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


def rms_norm(x, weight, eps):
    """Scale each row to unit mean square, without subtracting the mean.

        y = x / sqrt(E[x^2] + eps) * weight

    x:      [M, D], contiguous
    weight: [D], or None for 1
    -> y:   [M, D], dtype of x

    The sum accumulates in float64.
    Source: Zhang & Sennrich 2019, eq. 4; torch.nn.RMSNorm.
    """
    y = np.empty_like(x)
    weight = np.ones(x.shape[1], x.dtype) if weight is None else weight
    (_rms_norm32 if x.dtype == np.float32 else _rms_norm64)(x, weight, eps, y)
    return y


@kernel
def _rms_norm64(x, weight, eps, y):
    M, D = x.shape
    for m in prange(M):
        square = 0.0
        for d in range(D):
            value = np.float64(x[m, d])
            square += value * value
        scale = 1.0 / np.sqrt(square / D + eps)
        for d in range(D):
            y[m, d] = x[m, d] * scale * weight[d]


@kernel(contract=True)
def _rms_norm32(x, weight, eps, y):
    M, D = x.shape
    for m in prange(M):
        scale = np.float32(1.0 / np.sqrt(sum_of_squares32(x[m]) / D + eps))
        for d in range(D):
            y[m, d] = x[m, d] * scale * weight[d]


@kernel(parallel=False, contract=True, reassociate=True)
def sum_of_squares32(x):
    """Compute sum_i x_i^2 of float32 numbers with exact squares; the CPU's vectors set the order. -> float64"""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total
