"""Normalisation to unit length."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def l2_norm(x, eps):
    """Scale each row to length one; shorter ones than eps are divided by eps.

        y = x / max(|x|_2, eps)

    x:    [M, D]
    -> y: [M, D], dtype of x

    The sum of squares accumulates in float64.
    Source: torch.nn.functional.normalize; ggml_l2_norm.
    """
    M, D = x.shape
    y = np.empty_like(x)
    for m in prange(M):
        square = 0.0
        for d in range(D):
            value = np.float64(x[m, d])
            square += value * value
        length = max(np.sqrt(square), eps)
        for d in range(D):
            y[m, d] = x[m, d] / length
    return y
