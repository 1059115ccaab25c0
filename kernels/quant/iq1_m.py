"""IQ1_M: 256 weights in 1.75 bits each: 32 rows of a ternary grid of 8 with a shift each; a scale for 16 weights.

byte  0 .. 31  qs      low 8 bits of the grid row, a byte for 8 weights
byte 32 .. 47  qh      a nibble for 8 weights, low one first: bits 0 .. 2 the high bits of the grid row, bit 3
                       the sign of the shift
byte 48 .. 55  scales  four little-endian words of 16 bits: bits 3 k .. 3 k + 2 of word w the scale of weights
                       64 w + 16 k and on; bits 12 .. 15 of word w are bits 4 w .. 4 w + 3 of d, a float16
"""

import functools

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half_bytes, half_of, word16
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import IQ1 as GRID
from refsd.kernels.quant.group_scales import odd_scales
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.symmetric_search import squares
from refsd.kernels.quant.ternary_split import split_by_halves, value

BLOCK = 256
BYTES = 56
assert BYTES == BLOCK // 8 + BLOCK // 16 + 4 * 2


@expander(BLOCK, GRID, slp=True, loops=False)
def dequantize(blocks, grid, y):
    """Expand IQ1_M blocks.

        y = (d (2 scale + 1)) (grid +- 1/8)

    blocks: uint8 [n, 56]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq1_m.
    """
    for b in numba.prange(blocks.shape[0]):
        bits = np.uint32(0)
        for w in range(4):
            bits |= word16(blocks, b, 48 + 2 * w) >> np.uint32(12) << np.uint32(4 * w)
        d = half_of(bits)
        for l in range(32):
            code = word16(blocks, b, 48 + l // 8 * 2) >> np.uint32(l // 2 % 4 * 3) & np.uint32(0x7)
            scale = d * (np.float32(2) * np.float32(code) + np.float32(1))
            nibble = blocks[b, 32 + l // 2] >> np.uint8(l % 2 * 4)
            shift = np.float32(-0.125) if nibble & np.uint8(0x8) else np.float32(0.125)
            row = np.uint32(blocks[b, l]) | np.uint32(nibble & np.uint8(0x7)) << np.uint32(8)
            for j in range(8):
                y[b, 8 * l + j] = scale * (np.float32(grid[row, j]) + shift)
    return y


def quantize(x, importance=None):
    """Pack into IQ1_M blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, shifts and rows; round the scales; then over d

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 56]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block. At the end d is
    multiplied by 1.1125. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_iq1_m_impl.
    """
    x = frozen(x)
    weights = squares(x) if importance is None else error_weights(x, columns(importance, x), BLOCK, 2)
    scale, up, rows = split_by_halves(x.reshape(-1, 16), weights.reshape(-1, 16), 1e-7, _table())
    d, scales = odd_scales(scale.reshape(-1, 16), 15, 7)
    up, rows = up.reshape(-1, 32), rows.reshape(-1, 32)
    d = _refit(x, weights, d, scales, up, rows, _table().levels)
    nibbles = (rows >> 8).astype(np.uint8) | (~up).view(np.uint8) << 3
    qh = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    words = np.bitwise_or.reduce(scales.reshape(-1, 4, 4).astype("<u2") << np.arange(0, 12, 3, dtype="<u2"), axis=2)
    half = half_bytes(d * np.float32(1.1125)).view("<u2")
    words |= (half >> np.arange(0, 16, 4, dtype="<u2") & 0xF) << 12
    return np.concatenate([rows.astype(np.uint8), qh, words.astype("<u2").view(np.uint8)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 3)


@kernel
def _refit(x, weights, d, scales, up, rows, levels):
    """The best d for codes that stand; where all scales are 0, 0. -> float32 [n]"""
    fitted = np.zeros(d.shape[0], np.float32)
    for b in numba.prange(x.shape[0]):
        if d[b] != 0:
            sum_vx, sum_v2 = np.float32(0), np.float32(0)
            for j in range(BLOCK):
                odd = np.float32(2) * np.float32(scales[b, j // 16]) + np.float32(1)
                v = value(levels[rows[b, j // 8], j % 8], up[b, j // 8]) * odd
                sum_vx += weights[b, j] * v * x[b, j]
                sum_v2 += weights[b, j] * v * v
            fitted[b] = sum_vx / sum_v2 if sum_v2 > 0 else d[b]
    return fitted


IQ1_M = BlockType("iq1_m", 29, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
