"""Group normalisation and SiLU in one: every residual block of a UNet or VAE begins with the two."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.activations import silu
from refsd.kernels.group_norm import affine32, group_norm
from refsd.kernels.moments import mean_variance32
from refsd.kernels.sigmoid import silu32


def group_norm_silu(x, weight, bias, num_groups, eps):
    """silu(group_norm(x)), the picture written once.

    x:      [N, C, H, W], contiguous
    weight: [C]
    bias:   [C]
    -> y:   [N, C, H, W], dtype of x

    Both are bound by memory: one after the other writes and reads the picture once more. Float64 does so.
    """
    if x.dtype != np.float32:
        return silu(group_norm(x, weight, bias, num_groups, eps))
    N, C, H, W = x.shape
    y = np.empty_like(x)
    _group_norm_silu32(x.reshape(N * C, H * W), weight, bias, num_groups, eps, y.reshape(N * C, H * W))
    return y


@kernel(contract=True)
def _group_norm_silu32(rows, weight, bias, num_groups, eps, out):
    C = weight.size
    D = C // num_groups
    for group in prange(rows.shape[0] // D):
        mean, var = mean_variance32(rows[group * D : group * D + D].ravel())
        for row in range(group * D, group * D + D):
            centre, slope, shift = affine32(mean, var + eps, weight[row % C], bias[row % C])
            for i in range(rows.shape[1]):
                out[row, i] = silu32((rows[row, i] - centre) * slope + shift)
