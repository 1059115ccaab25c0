"""Copy an array with all threads: the memory bandwidth with which memory-bound operations are compared."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel
def copy_into(x, y):
    """Copy x into y: y[i] = x[i]. x, y: float32 [n]"""
    for i in prange(x.size):
        y[i] = x[i]


def copied(x):
    """Copy x into newly allocated memory, as an operation allocates its result."""
    y = np.empty_like(x)
    copy_into(x, y)
    return y
