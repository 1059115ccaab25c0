"""ComfyUI's scaled weights, in float64 and with the whole Hadamard matrix."""

import functools

import numpy as np

H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])


def hadamard(group):
    """Orthogonal: a Kronecker power of H4, divided by sqrt(group)."""
    levels = round(np.log(group) / np.log(4))
    return functools.reduce(np.kron, [H4] * levels) / np.sqrt(group)


def rotate(x, group):
    grouped = np.asarray(x, np.float64).reshape(len(x), -1, group)
    return np.einsum("ogi,ij->ogj", grouped, hadamard(group)).reshape(len(x), -1)


def int8(codes, scale):
    return codes.astype(np.float64) * np.reshape(scale, (-1, 1)).astype(np.float64)


def convrot(codes, scale, group):
    return rotate(int8(codes, scale), group)


def float8(codes, exponent_bits):
    """Sign, exponent, mantissa, each as a number; no table."""
    codes = codes.astype(np.int64)
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    sign, exponent = 1 - 2 * (codes >> 7), codes >> mantissa_bits & (2**exponent_bits - 1)
    fraction = (codes & (2**mantissa_bits - 1)) / 2.0**mantissa_bits
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(exponent - bias))
    if exponent_bits == 5:
        special = np.where(fraction == 0, np.inf, np.nan)
        value = np.where(exponent == 31, special, value)
    else:
        value = np.where(codes & 0x7F == 0x7F, np.nan, value)
    return sign * value
