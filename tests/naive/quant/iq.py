"""The IQ formats as positions of bits. The grids are gguf-py's."""

import gguf
import numpy as np
from naive.quant.bits import I, affine, half, nibbles, number, run

L = np.arange(32)  # groups of 8 weights
G = np.arange(8)  # groups of 32
CODEBOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


def grid(name, rows):
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    table = kind.grid.reshape(kind.grid_shape).astype(np.float64)
    return table[rows].reshape(len(rows), -1)


def free_signs(bits, first):
    """256 signs, a bit each."""
    return 1.0 - 2 * bits[:, 8 * first : 8 * first + 256]


def even_signs(bits, first):
    """Seven bits from each of 32 positions; the eighth is their sum modulo 2."""
    seven = bits[:, np.add.outer(first, np.arange(7))]
    eighth = seven.sum(axis=2, keepdims=True) % 2
    return 1.0 - 2 * np.concatenate([seven, eighth], axis=2).reshape(len(bits), 256)


def iq2_xxs(bits):
    rows = number(bits, run(8 * (2 + 8 * (L // 4) + L % 4), 8))
    signs = even_signs(bits, 8 * (6 + 8 * (L // 4)) + 7 * (L % 4))
    scale = number(bits, run(8 * (6 + 8 * G) + 28, 4)) + 0.5
    return affine(half(bits, 0) / 4, scale, grid("IQ2_XXS", rows) * signs)


def iq2_xs(bits):
    rows = number(bits, run(8 * 2 + 16 * L, 9))
    signs = even_signs(bits, 8 * 2 + 16 * L + 9)
    scale = number(bits, run(8 * 66 + 4 * np.arange(16), 4)) + 0.5
    return affine(half(bits, 0) / 4, scale, grid("IQ2_XS", rows) * signs)


def iq2_s(bits):
    rows = number(bits, np.concatenate([run(8 * (2 + L), 8), run(8 * 66 + 2 * L, 2)]))
    scale = number(bits, run(8 * 74 + 4 * np.arange(16), 4)) + 0.5
    return affine(half(bits, 0) / 4, scale, grid("IQ2_S", rows) * free_signs(bits, 34))


def iq3_xxs(bits):
    rows = number(bits, run(8 * (2 + np.arange(64)), 8))
    signs = even_signs(bits, 8 * (66 + 4 * (L // 4)) + 7 * (L % 4))
    scale = number(bits, run(8 * (66 + 4 * G) + 28, 4)) + 0.5
    return affine(half(bits, 0) / 2, scale, grid("IQ3_XXS", rows) * signs)


def iq3_s(bits):
    rows = number(bits, np.concatenate([run(8 * (2 + np.arange(64)), 8), run(8 * 66 + np.arange(64), 1)]))
    scale = 2 * number(bits, run(8 * 106 + 4 * G, 4)) + 1
    return affine(half(bits, 0), scale, grid("IQ3_S", rows) * free_signs(bits, 74))


def iq1_s(bits):
    rows = number(bits, np.concatenate([run(8 * (2 + L), 8), run(8 * 34 + 16 * (L // 4) + 3 * (L % 4), 3)]))
    scale = 2 * number(bits, run(8 * 34 + 16 * G + 12, 3)) + 1
    shift = (1 - 2.0 * bits[:, 8 * 34 + 16 * G + 15]) / 8
    return affine(half(bits, 0), scale, grid("IQ1_S", rows) + np.repeat(shift, 32, axis=1))


def iq1_m(bits):
    rows = number(bits, np.concatenate([run(8 * L, 8), run(8 * 32 + 4 * L, 3)]))
    shift = (1 - 2.0 * bits[:, 8 * 32 + 4 * L + 3]) / 8
    sixteen = np.arange(16)
    scale = 2 * number(bits, run(8 * 48 + 16 * (sixteen // 4) + 3 * (sixteen % 4), 3)) + 1
    d = half(bits[:, 8 * 48 + 16 * (sixteen // 4) + 12 + sixteen % 4], 0)
    return affine(d, scale, grid("IQ1_S", rows) + np.repeat(shift, 8, axis=1))


def iq4_nl(bits):
    return affine(half(bits, 0), 1, CODEBOOK[number(bits, nibbles(2))])


def iq4_xs(bits):
    scale = number(bits, np.concatenate([run(8 * 4 + 4 * G, 4), run(8 * 2 + 2 * G, 2)])) - 32
    q = number(bits, run(8 * (8 + 16 * (I // 32) + I % 16) + 4 * (I % 32 // 16), 4))
    return affine(half(bits, 0), scale, CODEBOOK[q])
