"""Resampling by taking pixels: a Kronecker product with ones, and exact fractions."""

from fractions import Fraction
from math import floor

import numpy as np


def upsample_nearest(x, factor):
    return np.kron(x, np.ones((factor, factor)))


def resize_nearest(x, height, width, offset=Fraction(0)):
    H, W = x.shape[2:]
    rows = [floor((p + offset) * H / height) for p in map(Fraction, range(height))]
    columns = [floor((q + offset) * W / width) for q in map(Fraction, range(width))]
    return np.stack([np.stack([x[:, :, r, c] for c in columns], axis=-1) for r in rows], axis=-2)


def resize_nearest_exact(x, height, width):
    return resize_nearest(x, height, width, Fraction(1, 2))
