"""IQ3_S: 256 weights in 3.44 bits each: 64 rows of a grid of 4, all signs, a 4-bit scale for each 32 weights.

byte   0 ..   1  d       float16
byte   2 ..  65  qs      low 8 bits of the grid row, a byte for 4 weights
byte  66 ..  73  qh      the ninth bit: bit l of byte g is that of row l of group g of 32
byte  74 .. 105  signs   bit j makes weight j of 8 negative
byte 106 .. 109  scales  low nibble: the first 32 of 64 weights; high nibble: the others
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.grid_blocks import grid_blocks, nibbles
from refsd.kernels.quant.grid_search import GridRule
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import IQ3_S as GRID
from refsd.kernels.quant.grids import SIGNS
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.packing import bits
from refsd.kernels.quant.symmetric_search import squares

BLOCK = 256
BYTES = 110
assert BYTES == 2 + BLOCK // 4 + BLOCK // 32 + BLOCK // 8 + BLOCK // 64


@expander(BLOCK, GRID, SIGNS, slp=True, loops=False)
def dequantize(blocks, grid, signs, y):
    """Expand IQ3_S blocks.

        y = (d (2 scale + 1)) sign grid

    blocks: uint8 [n, 110]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq3_s.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for g in range(8):
            code = blocks[b, 106 + g // 2] >> np.uint8(g % 2 * 4) & np.uint8(0xF)
            scale = d * (np.float32(2) * np.float32(code) + np.float32(1))
            high = np.uint32(blocks[b, 66 + g]) << np.uint32(8)
            for l in range(4):
                row0 = np.uint32(blocks[b, 2 + 8 * g + 2 * l]) | high >> np.uint32(2 * l) & np.uint32(0x100)
                row1 = np.uint32(blocks[b, 3 + 8 * g + 2 * l]) | high >> np.uint32(2 * l + 1) & np.uint32(0x100)
                sign = blocks[b, 74 + 4 * g + l]
                for j in range(4):
                    y[b, 32 * g + 8 * l + j] = scale * np.float32(grid[row0, j] * signs[sign, j])
                    y[b, 32 * g + 8 * l + 4 + j] = scale * np.float32(grid[row1, j] * signs[sign, 4 + j])
    return y


def quantize(x, importance=None):
    """Pack into IQ3_S blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, signs and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 110]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block. At the end d is
    multiplied by 1.033. Bit-exact with ggml's C, but for blocks where a group of zeros stands before another group:
    there ggml forgets to step over the zeros' rows and signs, and its block decodes to other weights.
    Source: ggml-quants.c, quantize_row_iq3_s_impl.
    """
    x = frozen(x)
    weights = squares(x) if importance is None else error_weights(x, columns(importance, x), BLOCK, 2)
    found = grid_blocks(x, weights.reshape(-1, 32), False, 0, _table(), GridRule(9, 0.2, every=True))
    parts = half_bytes(found.d * np.float32(1.033)), found.rows.astype(np.uint8), bits(found.rows, 8)
    return np.concatenate([*parts, found.signs, nibbles(found.scales)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 3)


IQ3_S = BlockType("iq3_s", 21, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
