"""Rotary position embedding, one axis or several, over neighbouring channels or over halves."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.sine import cos_sin64


def rope_angles(ids, axes_dim, theta):
    """Compute the angle by which RoPE rotates each pair of a head's channels at each position.

        angle[n, l, pair] = ids[n, l, axis] * theta^(-2 i / axes_dim[axis])

    The pairs of axis 0 come first, then those of axis 1, ...; i counts the pairs within an axis.

    ids:      [N, L, A], positions along A axes
    axes_dim: channels given to each axis, all even
    -> angle: [N, L, sum(axes_dim) / 2], float64

    FLUX.1 has axes_dim 16, 56, 56 and theta 10000, FLUX.2 four times 32 and 2000, Z-Image 32, 48, 48 and 256; Qwen3
    has one axis of 128 and 1000000.
    Source: Su et al. 2021, eq. 15; black-forest-labs/flux math.py, rope.
    """
    ids = np.asarray(ids, np.float64)
    return np.concatenate(
        [
            ids[..., a, None] * theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
            for a, dim in enumerate(axes_dim)
        ],
        axis=-1,
    )


def rope_angles_float32(ids, axes_dim, theta):
    """Compute `rope_angles` as an engine does that uses powf and float32 throughout.

        s_i = i * ((dim - 2) / dim / (dim / 2 - 1)),  angle = ids * (1 / theta^s_i)

    ids:      [N, L, A]
    axes_dim: channels given to each axis, all even
    -> angle: [N, L, sum(axes_dim) / 2], float32 numbers in float64

    Error: measured 8e-5 at 1000 radians, 1e-5 at 127.
    Source: stable-diffusion.cpp rope.hpp (later common/rope.hpp), linspace and rope.
    """
    ids = np.asarray(ids, np.float32)
    parts = []
    for a, dim in enumerate(axes_dim):
        half = dim // 2
        step = (np.float32(dim) - np.float32(2)) / np.float32(dim) / np.float32(max(half - 1, 1))
        scale = np.arange(half, dtype=np.float32) * step
        parts.append(ids[..., a, None] * (np.float32(1) / np.float32(theta) ** scale))
    return np.concatenate(parts, axis=-1).astype(np.float64)


def apply_rope(x, angle):
    """Rotate each pair of neighbouring channels (2i, 2i+1) by its angle.

        [y_2i, y_2i+1] = [[cos, -sin], [sin, cos]] [x_2i, x_2i+1]

    x:     [N, L, H, D], contiguous
    angle: [N or 1, L, D/2], radians, float64
    -> y:  [N, L, H, D], dtype of x

    Cosine and sine are computed in float64 and rounded once to the dtype of x.
    Raises ValueError if the angles are of other sizes than x.
    Source: Su et al. 2021, eq. 34; black-forest-labs/flux math.py, apply_rope.
    """
    _check(x, angle)
    y = np.empty_like(x)
    _turn_neighbours(x, np.ascontiguousarray(angle, np.float64), y)
    return y


def apply_rope_halves(x, angle):
    """Rotate each pair of channels half a head apart, (i, D/2 + i), by its angle.

        [y_i, y_D/2+i] = [[cos, -sin], [sin, cos]] [x_i, x_D/2+i]

    x:     [N, L, H, D], contiguous
    angle: [N or 1, L, D/2], radians, float64
    -> y:  [N, L, H, D], dtype of x

    This is `apply_rope` with other pairs: permuting the rows of q's and k's weights converts one to the other.
    Raises ValueError if the angles are of other sizes than x.
    Source: Black et al. 2022 (GPT-NeoX); transformers modeling_qwen3.py, rotate_half.
    """
    _check(x, angle)
    y = np.empty_like(x)
    _turn_halves(x, np.ascontiguousarray(angle, np.float64), y)
    return y


def _check(x, angle):
    N, L, _, D = x.shape
    if angle.shape not in ((N, L, D // 2), (1, L, D // 2)):
        raise ValueError(f"rope: angles of {angle.shape} for x of {x.shape}: expected {(N, L, D // 2)}")


@kernel(parallel=False)
def _turns(angle, cos, sin):
    """Fill the arrays cos and sin, in their dtype."""
    for i in range(angle.size):
        cos[i], sin[i] = cos_sin64(angle[i])


@kernel
def _turn_neighbours(x, angle, y):
    N, L, H, D = x.shape
    for token in prange(N * L):
        n, l = token // L, token % L
        cos, sin = np.empty(D // 2, x.dtype), np.empty(D // 2, x.dtype)
        _turns(angle[n % angle.shape[0], l], cos, sin)
        for h in range(H):
            for i in range(D // 2):
                even, odd = x[n, l, h, 2 * i], x[n, l, h, 2 * i + 1]
                y[n, l, h, 2 * i] = cos[i] * even - sin[i] * odd
                y[n, l, h, 2 * i + 1] = sin[i] * even + cos[i] * odd


@kernel
def _turn_halves(x, angle, y):
    N, L, H, D = x.shape
    for token in prange(N * L):
        n, l = token // L, token % L
        cos, sin = np.empty(D // 2, x.dtype), np.empty(D // 2, x.dtype)
        _turns(angle[n % angle.shape[0], l], cos, sin)
        for h in range(H):
            for i in range(D // 2):
                first, second = x[n, l, h, i], x[n, l, h, D // 2 + i]
                y[n, l, h, i] = cos[i] * first - sin[i] * second
                y[n, l, h, D // 2 + i] = sin[i] * first + cos[i] * second
