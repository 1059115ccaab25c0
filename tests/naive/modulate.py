"""Adaptive normalisation's second half, token by token."""

import numpy as np


def modulate(x, shift, scale):
    return np.stack([x[:, l] + x[:, l] * scale + shift for l in range(x.shape[1])], axis=1)
