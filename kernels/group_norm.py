"""Group normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.moments import mean_variance


@kernel
def group_norm(x, weight, bias, num_groups, eps):
    """Normalise each group of channels to zero mean and unit variance.

        y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias

    x:      [N, C, H, W]
    weight: [C]
    bias:   [C]
    -> y:   [N, C, H, W], dtype of x

    Variance is biased (divided by n). Sums accumulate in float64 whatever the dtype of x.
    Source: Wu & He 2018, eq. 1; torch.nn.GroupNorm.
    """
    N, C, H, W = x.shape
    D = C // num_groups
    y = np.empty_like(x)
    rows, out = x.reshape(N * C, H * W), y.reshape(N * C, H * W)
    for group in prange(N * num_groups):
        mean, var = mean_variance(rows[group * D : group * D + D].ravel())
        rstd = 1.0 / np.sqrt(var + eps)
        for row in range(group * D, group * D + D):
            c = row % C
            for i in range(H * W):
                out[row, i] = (rows[row, i] - mean) * rstd * weight[c] + bias[c]
    return y
