"""Norms that read their input once: the variance as E[x^2] - E[x]^2, which cancels where the mean is far from 0.

Sums are in the dtype of x, added one after the other, as slow as honest engines are.
"""

import numpy as np


def group_norm_one_pass(x, weight, bias, num_groups, eps):
    """y = x s + (bias - E[x] s) with s = weight / sqrt(max(E[x^2] - E[x]^2, 0) + eps)

    x: [N, C, H, W] -> the same; weight, bias: [C]

    Each channel is summed over its pixels, then the channels of a group.
    Source: torch's GroupNorm of a channels_last tensor on a CPU, group_norm_kernel.cpp.
    """
    N, C, H, W = x.shape
    count = x.dtype.type(C // num_groups * H * W)
    pixels = x.reshape(N, C, H * W)
    mean = _grouped(_sum(pixels), num_groups) / count
    square = _grouped(_sum(pixels * pixels), num_groups) / count
    scale = _per_channel(_inverse(square, mean, eps), C) * weight
    shift = bias - _per_channel(mean, C) * scale
    return x * scale[:, :, None, None] + shift[:, :, None, None]


def layer_norm_one_pass(x, weight, bias, eps):
    """The same for each row. x: [M, D], weight, bias: [D]

    Source: ggml-cuda/norm.cu, norm_f32; flax.linen.LayerNorm with use_fast_variance, its default.
    """
    count = x.dtype.type(x.shape[-1])
    mean, square = _sum(x) / count, _sum(x * x) / count
    return (x - mean[:, None]) * _inverse(square, mean, eps)[:, None] * weight + bias


def _sum(x):
    """Over the last axis, one after the other: cumulative, so that NumPy does not add by halves."""
    return np.add.accumulate(x, axis=-1, dtype=x.dtype)[..., -1] if x.shape[-1] else x.sum(axis=-1)


def _grouped(of_channels, num_groups):
    N, C = of_channels.shape
    return _sum(of_channels.reshape(N, num_groups, C // num_groups))


def _per_channel(of_groups, channels):
    return np.repeat(of_groups, channels // of_groups.shape[1], axis=1)


def _inverse(square, mean, eps):
    variance = np.maximum(square - mean * mean, 0)
    return 1 / np.sqrt(variance + variance.dtype.type(eps))
