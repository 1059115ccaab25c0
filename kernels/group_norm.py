"""Group normalisation."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.moments import mean_variance, mean_variance32


def group_norm(x, weight, bias, num_groups, eps):
    """Normalise each group of channels to zero mean and unit variance.

        y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias

    x:      [N, C, H, W], contiguous
    weight: [C]
    bias:   [C]
    -> y:   [N, C, H, W], dtype of x

    Variance is biased (divided by n). Sums accumulate in float64 whatever the dtype of x.
    Error (float32): measured <= 1e-7 of the largest value.
    Source: Wu & He 2018, eq. 1; torch.nn.GroupNorm.
    """
    N, C, H, W = x.shape
    y = np.empty_like(x)  # allocated by NumPy in huge pages; memory from a kernel would cause many page faults
    normalise = _group_norm32 if x.dtype == np.float32 else _group_norm64
    normalise(x.reshape(N * C, H * W), weight, bias, num_groups, eps, y.reshape(N * C, H * W))
    return y


@kernel
def _group_norm64(rows, weight, bias, num_groups, eps, out):
    C = weight.size
    D = C // num_groups
    for group in prange(rows.shape[0] // D):
        mean, var = mean_variance(rows[group * D : group * D + D].ravel())
        rstd = 1.0 / np.sqrt(var + eps)
        for row in range(group * D, group * D + D):
            c = row % C
            for i in range(rows.shape[1]):
                out[row, i] = (rows[row, i] - mean) * rstd * weight[c] + bias[c]


@kernel(contract=True)
def _group_norm32(rows, weight, bias, num_groups, eps, out):
    C = weight.size
    D = C // num_groups
    for group in prange(rows.shape[0] // D):
        mean, var = mean_variance32(rows[group * D : group * D + D].ravel())
        for row in range(group * D, group * D + D):
            centre, slope, shift = affine32(mean, var + eps, weight[row % C], bias[row % C])
            for i in range(rows.shape[1]):
                out[row, i] = (rows[row, i] - centre) * slope + shift


@kernel(parallel=False)
def affine32(mean, square, weight, bias):
    """Rewrite (x - mean) / sqrt(square) * weight + bias as (x - centre) slope + shift in float32.

    shift corrects the rounding of the mean. -> (centre, slope, shift), float32
    """
    centre = np.float32(mean)
    slope = weight / np.sqrt(square)
    return centre, np.float32(slope), np.float32(bias + (centre - mean) * slope)
