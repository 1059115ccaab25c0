"""Nearest upsampling as a Kronecker product with ones."""

import numpy as np


def upsample_nearest(x, factor):
    return np.kron(x, np.ones((factor, factor)))
