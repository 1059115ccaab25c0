"""Codes under a scale a group, in float64: bits unpacked one by one, scales by an index for each element."""

import numpy as np


def codes(packed):
    """Two a byte, the first in the upper half."""
    bits = np.unpackbits(np.asarray(packed, np.uint8)[:, None], axis=1)
    return (bits.reshape(-1, 2, 4) @ [8, 4, 2, 1]).ravel()


def expand(q, values, scale, group):
    return np.asarray(values, np.float64)[q] * np.repeat(np.asarray(scale, np.float64), group)[: len(q)]


def e2m1(q):
    """Sign, two bits of exponent (bias 1), one of mantissa."""
    sign, exponent, mantissa = 1 - 2 * (q >> 3), q >> 1 & 3, (q & 1) / 2
    return sign * np.where(exponent == 0, mantissa, (1 + mantissa) * 2.0 ** (exponent - 1))


def fp4(q):
    """bitsandbytes' own: the exponent counts down, and the largest is 1."""
    magnitude = {0: 0, 1: 1 / 192, 2: 2 / 3, 3: 1, 4: 1 / 3, 5: 1 / 2, 6: 1 / 6, 7: 1 / 4}
    return np.array([(-1) ** (int(c) >> 3) * magnitude[int(c) & 7] for c in q])


def in_tiles(scales):
    """Rows of scales as tensor cores want them: 128 by 4 at a time, padded; element after element."""
    rows, columns = scales.shape
    high, wide = -(-rows // 128), -(-columns // 4)
    kept = np.zeros(high * wide * 512, scales.dtype)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * wide + c // 4
            kept[512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4] = scales[r, c]
    return kept.reshape(128 * high, 4 * wide)
