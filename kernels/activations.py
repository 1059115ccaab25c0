"""Activation functions, element by element. Each takes a contiguous array of any shape.

x: [...]  ->  y: [...], dtype of x

float32 has separate formulas, which compile to vector instructions. Their errors are measured over all 2^32
arguments (tests/kernels/test_every_float32.py), and hold for |y| >= 2e-36. NumPy allocates the results, because it
requests huge pages; memory from Numba would cost more in page faults than the arithmetic takes.
"""

import math

import numpy as np
from numba import prange

from refsd.kernels._jit import by_dtype, kernel
from refsd.kernels.erfc import erfc64, normal_tail32
from refsd.kernels.exponential import exp32_of_sum, exp64


@kernel(parallel=False)
def _sigmoid_product64(x, u):
    return x / (1.0 + exp64(-u))


@kernel(parallel=False, contract=True)
def _sigmoid_product32(x, u, low):
    """Compute x sigmoid(u + low) through exp(-|u|), which cannot overflow. low: the rounding error of u"""
    e = exp32_of_sum(-abs(u), low if u < np.float32(0.0) else -low)
    return (x * e if u < np.float32(0.0) else x) / (np.float32(1.0) + e)


@kernel(parallel=False, contract=True)
def _sigmoid_product_of_double(x, u):
    """Compute x sigmoid(u) with u in float64."""
    u = -200.0 if u < -200.0 else (200.0 if u > 200.0 else u)
    high = np.float32(u)
    return _sigmoid_product32(x, high, np.float32(u - high))


@kernel(parallel=False)
def _silu64(x):
    return _sigmoid_product64(x, x)


@kernel(parallel=False)
def _silu32(x):
    return _sigmoid_product32(x, x, np.float32(0.0))


@kernel(parallel=False)
def _gelu64(x):
    return 0.5 * x * erfc64(x * -math.sqrt(0.5))


@kernel(parallel=False, contract=True)
def _gelu32(x):
    """Compute max(x, 0) - |x| Q(|x|), which has no cancellation on either side of 0."""
    a = abs(x)
    a = np.float32(15.0) if a > np.float32(15.0) else a
    return (x if x > np.float32(0.0) else np.float32(0.0)) - a * normal_tail32(a)


@kernel(parallel=False)
def _tanh_argument(x):
    """Compute 2 sqrt(2/pi) (x + 0.044715 x^3) in float64."""
    return 2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)


@kernel(parallel=False)
def _gelu_tanh64(x):
    return _sigmoid_product64(x, _tanh_argument(x))


@kernel(parallel=False)
def _gelu_tanh32(x):
    return _sigmoid_product_of_double(x, _tanh_argument(np.float64(x)))


@kernel(parallel=False)
def _quick_gelu64(x):
    return _sigmoid_product64(x, 1.702 * x)


@kernel(parallel=False)
def _quick_gelu32(x):
    return _sigmoid_product_of_double(x, 1.702 * np.float64(x))


_silu = by_dtype(_silu32, _silu64)
_gelu = by_dtype(_gelu32, _gelu64)
_gelu_tanh = by_dtype(_gelu_tanh32, _gelu_tanh64)
_quick_gelu = by_dtype(_quick_gelu32, _quick_gelu64)


@kernel
def _silu_each(x, y):
    for i in prange(x.size):
        y[i] = _silu(x[i])


def silu(x):
    """y = x * sigmoid(x) = x / (1 + exp(-x)).

    Error (float64): measured <= 2 ULP; (float32): 3.5 ULP.
    Source: Elfwing et al. 2017; torch.nn.functional.silu.
    """
    y = np.empty_like(x)
    _silu_each(x.ravel(), y.ravel())
    return y


@kernel
def _gelu_each(x, y):
    for i in prange(x.size):
        y[i] = _gelu(x[i])


def gelu(x):
    """y = x * Phi(x) = x/2 * (1 + erf(x / sqrt(2))), Phi the normal distribution function.

    Error (float64): measured <= 4 ULP for x > -2, x^2 ULP below: the tail magnifies the rounding of x / sqrt(2);
    (float32): 6.43 ULP.
    Source: Hendrycks & Gimpel 2016; torch.nn.functional.gelu(approximate="none").
    """
    y = np.empty_like(x)
    _gelu_each(x.ravel(), y.ravel())
    return y


@kernel
def _gelu_tanh_each(x, y):
    for i in prange(x.size):
        y[i] = _gelu_tanh(x[i])


def gelu_tanh(x):
    """y = x/2 * (1 + tanh(u)) = x / (1 + exp(-2 u)),  u = sqrt(2/pi) * (x + 0.044715 x^3).

    Error (float64): measured as in gelu; (float32): 3.5 ULP, because u is computed in float64.
    Source: Hendrycks & Gimpel 2016, section 2; torch.nn.functional.gelu(approximate="tanh").
    """
    y = np.empty_like(x)
    _gelu_tanh_each(x.ravel(), y.ravel())
    return y


@kernel
def _quick_gelu_each(x, y):
    for i in prange(x.size):
        y[i] = _quick_gelu(x[i])


def quick_gelu(x):
    """y = x * sigmoid(1.702 x).

    Error (float32): measured 3.5 ULP.
    Source: OpenAI CLIP, model.py, QuickGELU.
    """
    y = np.empty_like(x)
    _quick_gelu_each(x.ravel(), y.ravel())
    return y


@kernel
def _geglu_each(x, y):
    M, D = y.shape
    for m in prange(M):
        for d in range(D):
            y[m, d] = x[m, d] * _gelu(x[m, D + d])


def geglu(x):
    """Multiply the first half of each row by the GELU of the second.

        y[m, d] = x[m, d] * gelu(x[m, D + d])

    x:    [M, 2D]
    -> y: [M, D], dtype of x

    Source: Shazeer 2020, eq. 6, GEGLU.
    """
    y = np.empty((x.shape[0], x.shape[1] // 2), x.dtype)
    _geglu_each(x, y)
    return y
