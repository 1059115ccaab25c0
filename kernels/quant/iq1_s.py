"""IQ1_S: 256 weights in 1.56 bits each: 32 rows of a ternary grid of 8; each 32 weights have a scale and a shift.

byte  0 ..  1  d   float16
byte  2 .. 33  qs  low 8 bits of the grid row, a byte for 8 weights
byte 34 .. 49  qh  little-endian words of 16 bits, one for 32 weights: bits 3 l .. 3 l + 2 the high bits of row l,
                   bits 12 .. 14 the scale, bit 15 the sign of the shift
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, word16
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import IQ1 as GRID
from refsd.kernels.quant.group_scales import odd_scales
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.ternary_split import split_together

BLOCK = 256
BYTES = 50
assert BYTES == 2 + BLOCK // 8 + 2 * BLOCK // 32


@expander(BLOCK, GRID, slp=True, loops=False)
def dequantize(blocks, grid, y):
    """Expand IQ1_S blocks.

        y = (d (2 scale + 1)) (grid +- 1/8)

    blocks: uint8 [n, 50]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq1_s.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for g in range(8):
            word = word16(blocks, b, 34 + 2 * g)
            scale = d * (np.float32(2) * np.float32(word >> np.uint32(12) & np.uint32(0x7)) + np.float32(1))
            shift = np.float32(-0.125) if word & np.uint32(0x8000) else np.float32(0.125)
            for l in range(4):
                high = word >> np.uint32(3 * l) & np.uint32(0x7)
                row = np.uint32(blocks[b, 2 + 4 * g + l]) | high << np.uint32(8)
                for j in range(8):
                    y[b, 32 * g + 8 * l + j] = scale * (np.float32(grid[row, j]) + shift)
    return y


def quantize(x, importance=None):
    """Pack into IQ1_S blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, shift and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 50]

    w = importance sqrt(2 mean(x^2) + x^2), the mean over the block. At the end d is multiplied by 1.125.
    Bit-exact with ggml's C, which has no way without importance.
    Source: ggml-quants.c, quantize_row_iq1_s_impl.
    """
    x = frozen(x)
    weights = error_weights(x, columns(importance, x), BLOCK, 2).reshape(-1, 32)
    scale, up, rows = split_together(x.reshape(-1, 32), weights, 1e-12, _table())
    d, scales = odd_scales(scale.reshape(-1, 8), 15, 7)
    high = (rows >> 8) << np.arange(0, 12, 3)
    qh = np.bitwise_or.reduce(high, axis=1).reshape(-1, 8) | scales.astype(np.int32) << 12
    qh |= (~up[:, 0]).astype(np.int32).reshape(-1, 8) << 15
    qs = rows.astype(np.uint8).reshape(-1, 32)
    return np.concatenate([half_bytes(d * np.float32(1.125)), qs, qh.astype("<u2").view(np.uint8)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 3)


IQ1_S = BlockType("iq1_s", 19, BLOCK, BYTES, dequantize, quantize, importance=Importance.REQUIRED)
