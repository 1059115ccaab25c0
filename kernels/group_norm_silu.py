"""Group normalisation and SiLU in one kernel: every residual block of a UNet or VAE begins with both."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.activations import silu
from refsd.kernels.group_norm import affine32, group_norm
from refsd.kernels.moments import mean_variance32

# 2^r on [-1/2, 1/2] as 1 + r (c_1 + r (c_2 + ...)).
POWER = (6.931470037e-01, 2.402224243e-01, 5.550733581e-02, 9.671512991e-03, 1.326472731e-03)
_C1, _C2, _C3, _C4, _C5 = (np.float32(c) for c in POWER)
_MINUS_LOG2E = np.float32(-1.4426950408889634)
# Adding 1.5 * 2^23 to a small number rounds it to an integer, in the sum's lowest bits.
_ROUND = np.float32(1.5 * 2.0**23)


def group_norm_silu(x, weight, bias, num_groups, eps):
    """Compute silu(group_norm(x)) and write the picture only once.

    x:      [N, C, H, W], contiguous
    weight: [C]
    bias:   [C]
    -> y:   [N, C, H, W], dtype of x

    Both are memory-bound; separately they would write and read the picture once more, as float64 does here.
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
            steep, lift = slope * _MINUS_LOG2E, shift * _MINUS_LOG2E
            for i in range(rows.shape[1]):
                deviation = rows[row, i] - centre
                out[row, i] = silu_by_power32(deviation * slope + shift, deviation * steep + lift)


@kernel(parallel=False, contract=True)
def silu_by_power32(z, t):
    """Compute z / (1 + 2^t) in float32, t = -z / ln 2; a caller that computes z by a product gets t as cheaply.

        2^t = 2^k 2^r,  k = round(t),  r = t - k in [-1/2, 1/2]

    2^r is a minimax polynomial of degree 5 with error 9.2e-8; k is added to its exponent. The rounding of t costs
    u |t|, no more than that of z.
    Error: measured <= 1.2e-7 |z|.
    """
    clipped = min(max(t, np.float32(-126.0)), np.float32(128.0))
    shifted = clipped + _ROUND
    r = clipped - (shifted - _ROUND)
    p = _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    p = p * r + _C1
    p = p * r + np.float32(1.0)
    exponent = np.float32(shifted).view(np.int32) << np.int32(23)
    return z / (np.float32(1.0) + np.int32(np.float32(p).view(np.int32) + exponent).view(np.float32))
