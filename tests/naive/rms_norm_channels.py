"""RMS normalisation of each pixel's channels by NumPy's own norm, in long doubles."""

import numpy as np


def rms_norm_channels(x, weight, eps):
    x = x.astype(np.longdouble)
    length = np.sqrt(np.einsum("nc...,nc...->n...", x, x))[:, None]
    y = x * np.sqrt(np.longdouble(x.shape[1])) / np.maximum(length, eps)
    return (y * weight.reshape(-1, *[1] * (x.ndim - 2))).astype(np.float64)
