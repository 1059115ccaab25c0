"""The hyperbolic tangent from arithmetic alone: see exponential.py."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp64


@kernel(parallel=False)
def tanh64(x):
    """Compute tanh(x) in float64.

        |x| > 0.625:  tanh x = 1 - 2 / (exp(2x) + 1)
        otherwise:    tanh x = x + x^3 P(x^2) / Q(x^2)

    x:    float64  ->  y: float64

    Error: measured <= 2 ULP.
    Source: Cody & Waite 1980, chapter 13 (the rational function).
    """
    a = abs(x)
    far = 1.0 - 2.0 / (exp64(2.0 * a) + 1.0)
    z = x * x
    p = (-0.96437492777225469787e0 * z - 0.99225929672236083313e2) * z - 0.16134119023996228053e4
    q = ((z + 0.11274474380534949335e3) * z + 0.22337720718962312926e4) * z + 0.48402357071988688686e4
    near = a + a * (z * p / q)
    y = near if a < 0.625 else far
    return -y if x < 0.0 else y


def tanh(x):
    """y = tanh(x): TAESD's clamp, Z-Image's gates.

    x: [...], contiguous  ->  y: [...], dtype of x

    Each element is computed in float64 and rounded once.
    Source: torch.tanh.
    """
    y = np.empty_like(x)
    _tanh(x.reshape(-1), y.reshape(-1))
    return y


@kernel
def _tanh(x, y):
    for i in prange(x.size):
        y[i] = tanh64(np.float64(x[i]))
