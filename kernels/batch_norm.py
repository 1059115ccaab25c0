"""Batch normalisation with fixed statistics."""

import numpy as np


def batch_norm(x, mean, var, eps):
    """Normalise each channel by statistics that training has collected.

        y = (x - mean) / sqrt(var + eps)

    x:         [N, C, H, W]
    mean, var: [C]
    -> y:      [N, C, H, W], dtype of x

    FLUX.2's autoencoder applies it to its packed latents, with eps 1e-4, and `batch_denorm` before decoding.
    Source: Ioffe & Szegedy 2015, section 3.1; torch.nn.functional.batch_norm(training=False).
    """
    return (x - mean[:, None, None]) / _deviation(var, eps)


def batch_denorm(x, mean, var, eps):
    """Undo `batch_norm`.

        y = x * sqrt(var + eps) + mean

    x:         [N, C, H, W]
    mean, var: [C]
    -> y:      [N, C, H, W], dtype of x
    """
    return x * _deviation(var, eps) + mean[:, None, None]


def _deviation(var, eps):
    return np.sqrt(var + var.dtype.type(eps))[:, None, None]
