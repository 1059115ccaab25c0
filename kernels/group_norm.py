"""Group normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def group_norm(x, weight, bias, num_groups, eps):
    """Normalise each group of channels to zero mean and unit variance.

        y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias

    x:      [N, C, H, W]
    weight: [C]
    bias:   [C]
    -> y:   [N, C, H, W], dtype of x

    Variance is biased (divided by n) and taken around the mean, in a second pass. Sums
    accumulate in float64 whatever the dtype of x.
    Source: Wu & He 2018, eq. 1; torch.nn.GroupNorm.
    """
    N, C, H, W = x.shape
    D = C // num_groups
    n = D * H * W
    y = np.empty_like(x)
    for ng in prange(N * num_groups):
        i, g = ng // num_groups, ng % num_groups
        mean = 0.0
        for c in range(g * D, g * D + D):
            for h in range(H):
                for w in range(W):
                    mean += x[i, c, h, w]
        mean /= n
        var = 0.0
        for c in range(g * D, g * D + D):
            for h in range(H):
                for w in range(W):
                    var += (x[i, c, h, w] - mean) ** 2
        rstd = 1.0 / np.sqrt(var / n + eps)
        for c in range(g * D, g * D + D):
            for h in range(H):
                for w in range(W):
                    y[i, c, h, w] = (x[i, c, h, w] - mean) * rstd * weight[c] + bias[c]
    return y
