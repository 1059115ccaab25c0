"""Rectifiers."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


def relu(x):
    """y = max(x, 0).

    x: [...], contiguous  ->  y: [...], dtype of x; NaN stays NaN

    Source: Nair & Hinton 2010; torch.relu.
    """
    return leaky_relu(x, 0.0)


def leaky_relu(x, slope):
    """y = x if x > 0 else slope * x. ESRGAN's slope is 0.2.

    x: [...], contiguous  ->  y: [...], dtype of x

    Source: Maas et al. 2013; torch.nn.functional.leaky_relu.
    """
    y = np.empty_like(x)
    _leaky_relu(x.reshape(-1), x.dtype.type(slope), y.reshape(-1))
    return y


@kernel
def _leaky_relu(x, slope, y):
    for i in prange(x.size):
        y[i] = x[i] if x[i] > 0 else x[i] * slope
