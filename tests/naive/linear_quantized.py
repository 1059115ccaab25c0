"""A matrix product of two block formats in float64: each block is expanded to numbers, then multiplied."""

import numpy as np
from naive.quant import formats


def expand(name, blocks):
    """The numbers, and the magnitudes that each is the difference of."""
    return [v.reshape(len(blocks), -1) for v in formats.dequantize(name, blocks.reshape(-1, blocks.shape[-1]))]


def minimums(blocks):
    """A Q4_1 or Q5_1 block's m, for each of its weights."""
    bits = np.unpackbits(blocks.reshape(-1, blocks.shape[-1]), axis=1, bitorder="little")
    return np.repeat(formats.half(bits, 2), 32).reshape(len(blocks), -1)


def linear_quantized(activation, packed, name, blocks):
    """uint8 [M, n', bytes'], uint8 [O, n, bytes] -> float64 [M, O], and the sum of magnitudes"""
    (a, _), (w, magnitude) = expand(activation, packed), expand(name, blocks)
    if activation != "q8_1":
        return np.einsum("mk,ok->mo", a, w), np.einsum("mk,ok->mo", abs(a), magnitude)
    # The minimum meets the recorded sum of 32 activations, not the activations.
    m = minimums(blocks)
    bits = np.unpackbits(packed.reshape(-1, packed.shape[-1]), axis=1, bitorder="little")
    sums = np.repeat(formats.half(bits, 2) / 32, 32).reshape(len(packed), -1)
    y = np.einsum("mk,ok->mo", a, w - m) + np.einsum("mk,ok->mo", sums, m)
    return y, np.einsum("mk,ok->mo", abs(a), abs(w - m)) + np.einsum("mk,ok->mo", abs(sums), abs(m))
