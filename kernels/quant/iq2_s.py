"""IQ2_S: 256 weights in 2.56 bits each: 32 rows of a grid of 8, all 8 signs, a 4-bit scale for each 16 weights.

byte  0 ..  1  d       float16
byte  2 .. 33  qs      low 8 bits of the grid row, a byte for 8 weights
byte 34 .. 65  signs   bit j makes weight j of 8 negative
byte 66 .. 73  qh      high 2 bits of the grid row: bits 2l, 2l+1 of byte g are those of row l of group g of 32
byte 74 .. 81  scales  low nibble: the first 16 of 32 weights; high nibble: the others
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.grid_blocks import grid_blocks, nibbles
from refsd.kernels.quant.grid_search import GridRule
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import IQ2_S as GRID
from refsd.kernels.quant.grids import SIGNS
from refsd.kernels.quant.importance import columns, error_weights, spread_weights

BLOCK = 256
BYTES = 82
assert BYTES == 2 + BLOCK // 8 + BLOCK // 8 + BLOCK // 32 + BLOCK // 32


@expander(BLOCK, GRID, SIGNS, slp=True, loops=False)
def dequantize(blocks, grid, signs, y):
    """Expand IQ2_S blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 82]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_s.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for l in range(32):
            code = blocks[b, 74 + l // 4] >> np.uint8(l // 2 % 2 * 4) & np.uint8(0xF)
            scale = d * (np.float32(code) + np.float32(0.5)) * np.float32(0.25)
            high = blocks[b, 66 + l // 4] >> np.uint8(l % 4 * 2) & np.uint8(0x3)
            row = np.uint32(blocks[b, 2 + l]) | np.uint32(high) << np.uint32(8)
            sign = blocks[b, 34 + l]
            for j in range(8):
                y[b, 8 * l + j] = scale * np.float32(grid[row, j] * signs[sign, j])
    return y


def quantize(x, importance=None):
    """Pack into IQ2_S blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, signs and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 82]

    w = x^2 + mean(x^2) / 2; with importance, w = importance sqrt(2 mean(x^2) + x^2); the mean over the block. At
    the end d is multiplied by 0.9875. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_iq2_s_impl.
    """
    x = frozen(x)
    weights = spread_weights(x) if importance is None else error_weights(x, columns(importance, x), BLOCK, 2)
    found = grid_blocks(x, weights.reshape(-1, 16), False, 1e-8, _table(), GridRule(9, 0.1))
    high = (found.rows >> 8).astype(np.uint8).reshape(-1, 8, 4)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = half_bytes(found.d * np.float32(0.9875)), found.rows.astype(np.uint8), found.signs
    return np.concatenate([*parts, qh, nibbles(found.scales)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 1)


IQ2_S = BlockType("iq2_s", 22, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
