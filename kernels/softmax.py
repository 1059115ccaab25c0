"""Softmax over the last axis."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp64


@kernel
def softmax(x):
    """Turn each row of scores into weights that sum to one.

        y_j = exp(x_j - max x) / sum_k exp(x_k - max x)

    x:    [M, L]; -inf masks an entry
    -> y: [M, L], dtype of x; a row that is masked throughout gives zeros

    exp is taken, and the sum accumulates, in float64.
    Source: torch.nn.functional.softmax (which gives NaN for a row masked throughout).
    """
    M, L = x.shape
    y = np.empty_like(x)
    for m in prange(M):
        peak = -np.inf
        for j in range(L):
            peak = max(peak, x[m, j])
        # A row masked throughout has no maximum; any base will do, its sum is zero.
        base = peak if peak > -np.inf else 0.0
        total = 0.0
        for j in range(L):
            e = exp64(np.float64(x[m, j] - base))
            y[m, j] = e
            total += e
        for j in range(L):
            y[m, j] = y[m, j] / total if total != 0.0 else 0.0
    return y
