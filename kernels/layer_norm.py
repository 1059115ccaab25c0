"""Layer normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.moments import mean_variance


@kernel
def layer_norm(x, weight, bias, eps):
    """Normalise each row to zero mean and unit variance.

        y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias

    x:      [M, D]
    weight: [D]
    bias:   [D]
    -> y:   [M, D], dtype of x

    Variance is biased. Sums accumulate in float64.
    Source: Ba, Kiros & Hinton 2016; torch.nn.LayerNorm.
    """
    M, D = x.shape
    y = np.empty_like(x)
    for m in prange(M):
        mean, var = mean_variance(x[m])
        rstd = 1.0 / np.sqrt(var + eps)
        for d in range(D):
            y[m, d] = (x[m, d] - mean) * rstd * weight[d] + bias[d]
    return y
