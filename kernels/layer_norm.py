"""Layer normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.moments import mean_variance, mean_variance32


def layer_norm(x, weight, bias, eps):
    """Normalise each row to zero mean and unit variance.

        y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias

    x:      [M, D], contiguous
    weight: [D]
    bias:   [D]
    -> y:   [M, D], dtype of x

    Variance is biased. Sums accumulate in float64.
    Source: Ba, Kiros & Hinton 2016; torch.nn.LayerNorm.
    """
    y = np.empty_like(x)
    (_layer_norm32 if x.dtype == np.float32 else _layer_norm64)(x, weight, bias, eps, y)
    return y


@kernel
def _layer_norm64(x, weight, bias, eps, y):
    for m in prange(x.shape[0]):
        mean, var = mean_variance(x[m])
        rstd = 1.0 / np.sqrt(var + eps)
        for d in range(x.shape[1]):
            y[m, d] = (x[m, d] - mean) * rstd * weight[d] + bias[d]


@kernel(contract=True)
def _layer_norm32(x, weight, bias, eps, y):
    for m in prange(x.shape[0]):
        mean, var = mean_variance32(x[m])
        centre, rstd = np.float32(mean), np.float32(1.0 / np.sqrt(var + eps))
        rest = np.float32((centre - mean) * rstd)
        for d in range(x.shape[1]):
            y[m, d] = ((x[m, d] - centre) * rstd + rest) * weight[d] + bias[d]
