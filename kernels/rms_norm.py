"""Root-mean-square normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def rms_norm(x, weight, eps):
    """Scale each row to unit mean square; the mean itself stays.

        y = x / sqrt(E[x^2] + eps) * weight

    x:      [M, D]
    weight: [D]
    -> y:   [M, D], dtype of x

    The sum accumulates in float64.
    Source: Zhang & Sennrich 2019, eq. 4; torch.nn.RMSNorm.
    """
    M, D = x.shape
    y = np.empty_like(x)
    for m in prange(M):
        square = 0.0
        for d in range(D):
            square += float(x[m, d]) * x[m, d]
        scale = 1.0 / np.sqrt(square / D + eps)
        for d in range(D):
            y[m, d] = x[m, d] * scale * weight[d]
    return y
