"""exp as graphics processors compute it, and the functions that shaders make of it.

Vulkan 1.3, "Precision and Operation of SPIR-V Instructions": exp(x) is exp2(x log2(e)), within 3 + 2 |x| units in
the last place, since the product's rounding moves the exponent; a quotient is within 2.5 units.
"""

from collections.abc import Callable

import numpy as np

from refsd.kernels.activations import silu
from refsd.kernels.sigmoid import sigmoid
from refsd.kernels.tanh import tanh

QUOTIENT = 5.0  # error of a quotient, in units of u


def exp_error(x: np.ndarray) -> np.ndarray:
    """Return the relative error of exp(x) in units of u, half a unit in the last place."""
    return 6 + 4 * np.abs(x)


def _exp(x):
    return np.exp2(x * x.dtype.type(np.log2(np.e)))


def _sigmoid(x):
    return 1 / (1 + _exp(-x))


def _silu(x):
    return x / (1 + _exp(-x))


def _tanh(x):
    """1 - 2 / (exp(2x) + 1), which loses the digits of a small x: ggml-vulkan, unary.comp, op_tanh."""
    return 1 - 2 / (_exp(2 * x) + 1)


_SHADERS: dict[Callable, Callable] = {sigmoid: _sigmoid, silu: _silu, tanh: _tanh}


def in_a_shader(kernel: Callable) -> Callable:
    """Return the function that a shader computes in place of a kernel; the kernel itself if there is no such."""
    shader = _SHADERS.get(kernel)
    if shader is None:
        return kernel

    def compute(x):
        with np.errstate(over="ignore"):
            return shader(x)

    return compute
