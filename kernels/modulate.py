"""Adaptive normalisation: scale, shift and gate each item's tokens by values from its conditioning."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.layer_norm import layer_norm
from refsd.kernels.moments import mean_variance32


def modulate(x, shift, scale):
    """Scale and shift every token of an item.

        y = x * (1 + scale) + shift

    x:            [N, L, D], contiguous
    shift, scale: [N, D]
    -> y:         [N, L, D], dtype of x

    Raises ValueError if the arrays do not fit each other.
    Source: Peebles & Xie 2022, section 3.2 (adaLN).
    """
    _check(x, shift, scale)
    y = np.empty_like(x)
    _modulate(x, shift, scale, y)
    return y


def adaptive_layer_norm(x, shift, scale, eps):
    """Layer normalisation without weights, then `modulate`.

        y = (x - E[x]) / sqrt(Var[x] + eps) * (1 + scale) + shift

    x:            [N, L, D], contiguous
    shift, scale: [N, D]
    -> y:         [N, L, D], dtype of x

    In float32 one kernel does both; the sums accumulate in float64.
    Raises ValueError if the arrays do not fit each other.
    Source: Peebles & Xie 2022, section 3.2 (adaLN).
    """
    _check(x, shift, scale)
    if x.dtype != np.float32:
        one, zero = np.ones(x.shape[2], x.dtype), np.zeros(x.shape[2], x.dtype)
        return modulate(layer_norm(x.reshape(-1, x.shape[2]), one, zero, eps).reshape(x.shape), shift, scale)
    y = np.empty_like(x)
    _adaptive_layer_norm32(x, shift, scale, eps, y)
    return y


def gated_add(x, h, gate):
    """Add a block's output to the residual stream, multiplied by a gate for each channel.

        y = x + gate * h

    x, h: [N, L, D], contiguous
    gate: [N, D]
    -> y: [N, L, D], dtype of x

    Raises ValueError if the arrays do not fit each other.
    Source: Peebles & Xie 2022, section 3.2 (adaLN-Zero). Z-Image gates by tanh(gate).
    """
    if h.shape != x.shape:
        raise ValueError(f"gated_add: h of {h.shape} for x of {x.shape}")
    _check(x, gate)
    y = np.empty_like(x)
    _gated_add(x, h, gate, y)
    return y


def _check(x, *vectors):
    N, _, D = x.shape
    if any(vector.shape != (N, D) for vector in vectors):
        shapes = ", ".join(str(vector.shape) for vector in vectors)
        raise ValueError(f"modulation of {shapes} for x of {x.shape}: expected {(N, D)}")


@kernel
def _modulate(x, shift, scale, y):
    N, L, D = x.shape
    one = x.dtype.type(1)
    for token in prange(N * L):
        n, l = token // L, token % L
        for d in range(D):
            y[n, l, d] = x[n, l, d] * (one + scale[n, d]) + shift[n, d]


@kernel(contract=True)
def _adaptive_layer_norm32(x, shift, scale, eps, y):
    N, L, D = x.shape
    for token in prange(N * L):
        n, l = token // L, token % L
        mean, var = mean_variance32(x[n, l])
        centre, rstd = np.float32(mean), np.float32(1.0 / np.sqrt(var + eps))
        rest = np.float32((centre - mean) * rstd)
        for d in range(D):
            normalised = (x[n, l, d] - centre) * rstd + rest
            y[n, l, d] = normalised * (np.float32(1.0) + scale[n, d]) + shift[n, d]


@kernel
def _gated_add(x, h, gate, y):
    N, L, D = x.shape
    for token in prange(N * L):
        n, l = token // L, token % L
        for d in range(D):
            y[n, l, d] = x[n, l, d] + gate[n, d] * h[n, l, d]
