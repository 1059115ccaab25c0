"""Compute the weights of quantization errors from an importance matrix.

An importance matrix holds a number for each column of a weight matrix: the mean square of the activations that
were multiplied by it.
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen


def columns(importance, x):
    """Check an importance: one number for each column of the matrix whose blocks x holds. -> float32 [width]

    importance: [width]
    x:          [n, block]

    Raises ValueError if it is None, if `width` is not a multiple of the block, or if the blocks are not whole rows.
    """
    if importance is None:
        raise ValueError("this block type needs an importance, one number for each column of the matrix")
    importance = frozen(np.asarray(importance, np.float32).reshape(-1))
    if not importance.size or importance.size % x.shape[1] or x.size % importance.size:
        raise ValueError(
            f"importance of {importance.size} columns does not fit {x.shape[0]} blocks of {x.shape[1]}"
        )
    return importance


def every_row(importance, x):
    """Repeat the importance for each element of x. float32 [width], [n, block] -> [n, block]"""
    return np.broadcast_to(importance, (x.size // importance.size, importance.size)).reshape(x.shape)


def error_weights(x, importance, span, factor, divisor=None):
    """Compute the weight of each element's error.

        w = importance sqrt(factor sum(x^2) / divisor + x^2),    the sum over each `span` elements

    x:          float32 [n, block]
    importance: float32 [width], a multiple of span
    divisor:    span, where none is given: then that is the mean, times the factor
    -> w:       float32 [n, block]

    The sum runs in float32, one element after the other.
    """
    divisor = np.float32(span if divisor is None else divisor)
    return _error_weights(x.reshape(-1, span), importance, np.float32(factor), divisor).reshape(x.shape)


@kernel
def _error_weights(x, importance, factor, divisor):
    weights = np.empty(x.shape, np.float32)
    for row in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[row, j] * x[row, j]
        variance = factor * total / divisor
        column = row * x.shape[1] % importance.shape[0]
        for j in range(x.shape[1]):
            weights[row, j] = importance[column + j] * np.sqrt(variance + x[row, j] * x[row, j])
    return weights


@kernel
def spread_weights(x):
    """Weigh without importance: w = x^2 + mean(x^2) / 2 over each row. float32 [n, block] -> [n, block]"""
    weights = np.empty(x.shape, np.float32)
    for row in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[row, j] * x[row, j]
        base = np.float32(0.25) * (np.float32(2) * total / np.float32(x.shape[1]))
        for j in range(x.shape[1]):
            weights[row, j] = base + x[row, j] * x[row, j]
    return weights


@kernel
def row_sums(weights):
    """Sum each row, one element after the other. float32 [m, size] -> [m]"""
    sums = np.empty(weights.shape[0], np.float32)
    for row in numba.prange(weights.shape[0]):
        total = np.float32(0)
        for j in range(weights.shape[1]):
            total += weights[row, j]
        sums[row] = total
    return sums
