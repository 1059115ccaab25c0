"""The linear layer."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def _add_bias(y, bias):
    """Add a bias in place: y[m, :] += bias. Uses all cores; NumPy would use one."""
    for m in prange(y.shape[0]):
        for o in range(y.shape[1]):
            y[m, o] += bias[o]


def linear(x, weight, bias=None, matmul=np.matmul):
    """Multiply by a matrix, add a bias.

        y[m, o] = sum_k x[m, k] weight[o, k] + bias[o]

    x:      [..., K]
    weight: [O, K]
    bias:   [O] or None
    matmul: np.matmul, whose sums accumulate in the dtype of x, in BLAS's order; or another with its arguments
    -> y:   [..., O], dtype of x

    Source: torch.nn.Linear.
    """
    y = matmul(x.reshape(-1, x.shape[-1]), weight.T)
    if bias is not None:
        _add_bias(y, bias)
    return y.reshape(*x.shape[:-1], weight.shape[0])
