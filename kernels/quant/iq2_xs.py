"""IQ2_XS: 256 weights in 2.31 bits each: 32 rows of a grid of 8 and their signs, a 4-bit scale for each 16 weights.

byte  0 ..  1  d       float16
byte  2 .. 65  qs      little-endian words of 16 bits, one for 8 weights: bits 0 .. 8 the grid row, bits 9 .. 15 the
                       signs (the eighth sign makes the minuses even)
byte 66 .. 73  scales  low nibble: the first 16 of 32 weights; high nibble: the others
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, word16
from refsd.kernels.quant.grid_blocks import grid_blocks, nibbles
from refsd.kernels.quant.grid_search import GridRule
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import EVEN_SIGNS
from refsd.kernels.quant.grids import IQ2_XS as GRID
from refsd.kernels.quant.importance import columns, error_weights

BLOCK = 256
BYTES = 74
assert BYTES == 2 + 2 * BLOCK // 8 + BLOCK // 32


@expander(BLOCK, GRID, EVEN_SIGNS, slp=True, loops=False)
def dequantize(blocks, grid, signs, y):
    """Expand IQ2_XS blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 74]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_xs.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for l in range(32):
            code = blocks[b, 66 + l // 4] >> np.uint8(l // 2 % 2 * 4) & np.uint8(0xF)
            scale = d * (np.float32(code) + np.float32(0.5)) * np.float32(0.25)
            word = word16(blocks, b, 2 + 2 * l)
            row, sign = word & np.uint32(0x1FF), word >> np.uint32(9)
            for j in range(8):
                y[b, 8 * l + j] = scale * np.float32(grid[row, j] * signs[sign, j])
    return y


def quantize(x, importance=None):
    """Pack into IQ2_XS blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, signs and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 74]

    w = importance sqrt(mean(x^2) + x^2), the mean over the block. Bit-exact with ggml's C, which has no way without
    importance.
    Source: ggml-quants.c, quantize_row_iq2_xs_impl.
    """
    x = frozen(x)
    weights = error_weights(x, columns(importance, x), BLOCK, 1).reshape(-1, 16)
    found = grid_blocks(x, weights, True, 1e-15, _table(), GridRule(9, 0.1))
    qs = (found.rows | found.signs.astype(np.int32) << 9).astype("<u2").view(np.uint8)
    return np.concatenate([half_bytes(found.d), qs, nibbles(found.scales)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 2)


IQ2_XS = BlockType("iq2_xs", 17, BLOCK, BYTES, dequantize, quantize, importance=Importance.REQUIRED)
