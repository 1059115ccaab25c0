"""RMS normalisation over the channels of each pixel of a picture or video, alone and followed by SiLU."""

import math

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.activations import silu
from refsd.kernels.group_norm_silu import silu_by_power32

# Pixels per pass: with hundreds of channels they stay in the L2 cache between the sum and the scaling.
_PIXELS = 128
_MINUS_LOG2E = np.float32(-1.4426950408889634)


def rms_norm_channels(x, weight, eps):
    """Scale the channels of each pixel to unit mean square.

        y[n, c, p] = x[n, c, p] / max(|x[n, :, p]|_2, eps) sqrt(C) weight[c]

    x:      [N, C, ...], contiguous
    weight: [C]
    -> y:   [N, C, ...], dtype of x

    The sum of squares accumulates in float64.
    Source: Wan-Video/Wan2.1, wan/modules/vae.py, RMS_norm; torch.nn.functional.normalize.
    """
    y = np.empty_like(x)
    N, C = x.shape[:2]
    scale = _scale_channels32 if x.dtype == np.float32 else _scale_channels64
    scale(x.reshape(N, C, -1), weight, eps, math.sqrt(C), y.reshape(N, C, -1))
    return y


def rms_norm_channels_silu(x, weight, eps):
    """Compute silu(rms_norm_channels(x)); in float32 the picture is written only once.

    Arguments, result: as in rms_norm_channels.
    """
    if x.dtype != np.float32:
        return silu(rms_norm_channels(x, weight, eps))
    y = np.empty_like(x)
    N, C = x.shape[:2]
    _scale_channels_silu32(x.reshape(N, C, -1), weight, eps, math.sqrt(C), y.reshape(N, C, -1))
    return y


@kernel(parallel=False)
def _lengths(x, eps, out):
    """x: [C, P] -> out: [P], the length of each pixel's channels, at least eps"""
    out[:] = 0.0
    for c in range(x.shape[0]):
        for p in range(x.shape[1]):
            out[p] += np.float64(x[c, p]) * np.float64(x[c, p])
    for p in range(x.shape[1]):
        out[p] = max(np.sqrt(out[p]), eps)


@kernel
def _scale_channels64(x, weight, eps, root, y):
    N, C, P = x.shape
    blocks = (P + _PIXELS - 1) // _PIXELS
    for block in prange(N * blocks):
        n, start = block // blocks, block % blocks * _PIXELS
        end = min(start + _PIXELS, P)
        length = np.empty(end - start)
        _lengths(x[n, :, start:end], eps, length)
        for c in range(C):
            for p in range(start, end):
                y[n, c, p] = x[n, c, p] / length[p - start] * root * weight[c]


@kernel(contract=True)
def _scale_channels32(x, weight, eps, root, y):
    N, C, P = x.shape
    blocks = (P + _PIXELS - 1) // _PIXELS
    for block in prange(N * blocks):
        n, start = block // blocks, block % blocks * _PIXELS
        end = min(start + _PIXELS, P)
        length = np.empty(end - start)
        _lengths(x[n, :, start:end], eps, length)
        scale = np.empty(end - start, np.float32)
        for p in range(end - start):
            scale[p] = root / length[p]
        for c in range(C):
            for p in range(start, end):
                y[n, c, p] = x[n, c, p] * scale[p - start] * weight[c]


@kernel(contract=True)
def _scale_channels_silu32(x, weight, eps, root, y):
    N, C, P = x.shape
    blocks = (P + _PIXELS - 1) // _PIXELS
    for block in prange(N * blocks):
        n, start = block // blocks, block % blocks * _PIXELS
        end = min(start + _PIXELS, P)
        length = np.empty(end - start)
        _lengths(x[n, :, start:end], eps, length)
        scale = np.empty(end - start, np.float32)
        for p in range(end - start):
            scale[p] = root / length[p]
        for c in range(C):
            for p in range(start, end):
                z = x[n, c, p] * scale[p - start] * weight[c]
                y[n, c, p] = silu_by_power32(z, z * _MINUS_LOG2E)
