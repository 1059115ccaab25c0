"""Rotary embedding as multiplication by a unit complex number."""

import numpy as np


def apply_rope(x, angle):
    pairs = np.ascontiguousarray(x).view(np.complex128)
    return (pairs * np.exp(1j * angle)[:, :, None]).view(np.float64)
