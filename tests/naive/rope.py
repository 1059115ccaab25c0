"""Rotary embedding as multiplication by a unit complex number; angles pair by pair."""

import itertools
import math

import numpy as np


def rope_angles(ids, axes_dim, theta):
    pairs = [(a, i, dim) for a, dim in enumerate(axes_dim) for i in range(dim // 2)]
    N, L, _ = np.shape(ids)
    angle = np.empty((N, L, len(pairs)))
    for n, l, p in itertools.product(range(N), range(L), range(len(pairs))):
        a, i, dim = pairs[p]
        angle[n, l, p] = ids[n][l][a] / math.pow(theta, 2 * i / dim)
    return angle


def apply_rope(x, angle):
    pairs = np.ascontiguousarray(x).view(np.complex128)
    return (pairs * np.exp(1j * angle)[:, :, None]).view(np.float64)


def apply_rope_halves(x, angle):
    first, second = np.split(x, 2, axis=-1)
    turned = (first + 1j * second) * np.exp(1j * angle)[:, :, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)
