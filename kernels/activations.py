"""Activation functions, element by element. Each takes an array of any shape and keeps its dtype.

x: [...]  ->  y: [...], dtype of x
"""

import math

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def silu(x):
    """y = x * sigmoid(x) = x / (1 + exp(-x)).

    Source: Elfwing et al. 2017; torch.nn.functional.silu.
    """
    y = np.empty_like(x)
    a, b = x.ravel(), y.ravel()
    for i in prange(a.size):
        b[i] = a[i] / (1.0 + math.exp(-a[i]))
    return y


@kernel
def gelu(x):
    """y = x * Phi(x) = x/2 * (1 + erf(x / sqrt(2))), Phi the normal distribution function.

    Source: Hendrycks & Gimpel 2016; torch.nn.functional.gelu(approximate="none").
    """
    y = np.empty_like(x)
    a, b = x.ravel(), y.ravel()
    for i in prange(a.size):
        b[i] = 0.5 * a[i] * math.erfc(-a[i] * math.sqrt(0.5))
    return y


@kernel
def gelu_tanh(x):
    """y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Source: Hendrycks & Gimpel 2016, section 2; torch.nn.functional.gelu(approximate="tanh").
    """
    y = np.empty_like(x)
    a, b = x.ravel(), y.ravel()
    for i in prange(a.size):
        v = a[i]
        b[i] = 0.5 * v * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v * v * v)))
    return y


@kernel
def quick_gelu(x):
    """y = x * sigmoid(1.702 x).

    Source: OpenAI CLIP, model.py, QuickGELU.
    """
    y = np.empty_like(x)
    a, b = x.ravel(), y.ravel()
    for i in prange(a.size):
        b[i] = a[i] / (1.0 + math.exp(-1.702 * a[i]))
    return y
