"""SwiGLU, gating by SiLU: the feed-forward layers of FLUX.2, Z-Image, Qwen3 and gpt-oss."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp64
from refsd.kernels.sigmoid import silu32


def swiglu(x):
    """Multiply the second half of each row by the SiLU of the first.

        y[m, d] = silu(x[m, d]) * x[m, D + d]

    x:    [M, 2D], contiguous
    -> y: [M, D], dtype of x

    Source: Shazeer 2020, eq. 6, SwiGLU; diffusers Flux2SwiGLU; ggml_swiglu.
    """
    D = x.shape[1] // 2
    return _gate_parts(x, x, 0, D, D)


def swiglu_second_gates(x):
    """Multiply the first half of each row by the SiLU of the second, which is GEGLU's order of halves.

        y[m, d] = x[m, d] * silu(x[m, D + d])

    x:    [M, 2D], contiguous
    -> y: [M, D], dtype of x

    Source: diffusers activations.py, SwiGLU; ggml_swiglu_swapped.
    """
    D = x.shape[1] // 2
    return _gate_parts(x, x, D, 0, D)


def swiglu_oai(gate, value, alpha, limit):
    """Compute gpt-oss's SwiGLU: both inputs are clipped, the gate is steeper, and 1 is added to the value.

        g = min(gate, limit),  v = min(max(value, -limit), limit)
        y = g * sigmoid(alpha g) * (v + 1)

    gate, value: [M, D], contiguous
    -> y:        [M, D], their dtype

    Each element is computed in float64 and rounded once.
    Source: openai/gpt-oss torch/model.py, swiglu; ggml_swiglu_oai.
    """
    y = np.empty_like(gate)
    _swiglu_oai(gate.reshape(-1), value.reshape(-1), float(alpha), float(limit), y.reshape(-1))
    return y


def _gate_parts(gates, values, first, second, D):
    """Compute silu(gates[:, first : first + D]) * values[:, second : second + D]."""
    y = np.empty((gates.shape[0], D), gates.dtype)
    (_gate32 if gates.dtype == np.float32 else _gate64)(gates, values, first, second, y)
    return y


@kernel
def _gate64(gates, values, first, second, y):
    for m in prange(y.shape[0]):
        for d in range(y.shape[1]):
            g = np.float64(gates[m, first + d])
            y[m, d] = g / (1.0 + exp64(-g)) * values[m, second + d]


@kernel(contract=True)
def _gate32(gates, values, first, second, y):
    for m in prange(y.shape[0]):
        for d in range(y.shape[1]):
            y[m, d] = silu32(gates[m, first + d]) * values[m, second + d]


@kernel
def _swiglu_oai(gate, value, alpha, limit, y):
    for i in prange(y.size):
        g = min(np.float64(gate[i]), limit)
        v = min(max(np.float64(value[i]), -limit), limit)
        y[i] = g / (1.0 + exp64(-alpha * g)) * (v + 1.0)
