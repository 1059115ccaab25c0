"""Pixels into channels by strided slices."""

import numpy as np


def pixel_unshuffle(x, p):
    return np.concatenate(
        [x[:, c : c + 1, i::p, j::p] for c in range(x.shape[1]) for i in range(p) for j in range(p)], 1
    )


def pixel_shuffle(x, p):
    N, channels, H, W = x.shape
    y = np.empty((N, channels // p**2, H * p, W * p))
    for channel in range(channels):
        c, place = divmod(channel, p * p)
        y[:, c, place // p :: p, place % p :: p] = x[:, channel]
    return y
