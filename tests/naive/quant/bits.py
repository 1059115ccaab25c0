"""Numbers from positions of bits in a block."""

import numpy as np


def number(bits, positions):
    """bits [n, B], positions [k, w] (bit k of w numbers, lowest first) -> integers [n, w]"""
    return sum(bits[:, p].astype(np.int64) << k for k, p in enumerate(np.atleast_2d(positions)))


def half(bits, byte):
    mantissa, exponent = number(bits, run(8 * byte, 10)), number(bits, run(8 * byte + 10, 5))
    sign = 1 - 2 * number(bits, run(8 * byte + 15, 1)).astype(np.float64)
    normal = np.ldexp(1024.0 + mantissa, exponent - 25)
    special = np.where(mantissa == 0, np.inf, np.nan)
    return sign * np.where(exponent == 0, np.ldexp(mantissa * 1.0, -24), np.where(exponent == 31, special, normal))


def run(first, width):
    """`width` bits in a row from bit `first` (one number, or one for each entry). -> [width, ...]"""
    return np.add.outer(np.arange(width), np.atleast_1d(first))


def signed8(x):
    return np.where(x < 128, x, x - 256)


def affine(d, scale, q, dmin=0.0, minimum=0.0):
    """d scale q - dmin minimum, and the sum of the two magnitudes, from which a rounding error is judged."""
    size = q.shape[1] // np.shape(scale)[1] if np.ndim(scale) else 1
    spread = lambda x: np.repeat(x, size, axis=1) if np.ndim(x) else x
    a, b = d * spread(scale) * q, dmin * spread(minimum)
    return a - b, abs(a) + abs(b)


J = np.arange(32)
I = np.arange(256)


def nibbles(first):
    """Weight j of 32: low nibbles the first half, high nibbles the second."""
    return run(8 * (first + J % 16) + 4 * (J // 16), 4)
