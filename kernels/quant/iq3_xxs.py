"""IQ3_XXS: 256 weights in 3.06 bits each: 64 rows of a grid of 4, signs, a 4-bit scale for each 32 weights.

byte  0 ..  1  d      float16
byte  2 .. 65  qs     the grid row, a byte for 4 weights
byte 66 .. 97  signs  a little-endian word for 32 weights: bits 7 l .. 7 l + 6 the signs of weights 8 l .. 8 l + 7
                      (the eighth sign makes the minuses even), bits 28 .. 31 the scale
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, word32
from refsd.kernels.quant.grid_blocks import grid_blocks, sign_words
from refsd.kernels.quant.grid_search import GridRule
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import EVEN_SIGNS
from refsd.kernels.quant.grids import IQ3_XXS as GRID
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.symmetric_search import squares

BLOCK = 256
BYTES = 98
assert BYTES == 2 + BLOCK // 4 + 4 * BLOCK // 32


@expander(BLOCK, GRID, EVEN_SIGNS, slp=True, loops=False)
def dequantize(blocks, grid, signs, y):
    """Expand IQ3_XXS blocks.

        y = (d (scale + 1/2) / 2) sign grid

    blocks: uint8 [n, 98]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq3_xxs.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for g in range(8):
            word = word32(blocks, b, 66 + 4 * g)
            scale = d * (np.float32(word >> np.uint32(28)) + np.float32(0.5)) * np.float32(0.5)
            for l in range(4):
                sign = word >> np.uint32(7 * l) & np.uint32(0x7F)
                row0, row1 = blocks[b, 2 + 8 * g + 2 * l], blocks[b, 3 + 8 * g + 2 * l]
                for j in range(4):
                    y[b, 32 * g + 8 * l + j] = scale * np.float32(grid[row0, j] * signs[sign, j])
                    y[b, 32 * g + 8 * l + 4 + j] = scale * np.float32(grid[row1, j] * signs[sign, 4 + j])
    return y


def quantize(x, importance=None):
    """Pack into IQ3_XXS blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, signs and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 98]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block. At the end d is
    multiplied by 1.0125. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_iq3_xxs_impl.
    """
    x = frozen(x)
    weights = squares(x) if importance is None else error_weights(x, columns(importance, x), BLOCK, 2)
    found = grid_blocks(x, weights.reshape(-1, 32), True, 1e-8, _table(), GridRule(15, 0.2))
    words = sign_words(found.signs, found.scales)
    return np.concatenate([half_bytes(found.d * np.float32(1.0125)), found.rows.astype(np.uint8), words], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 2)


IQ3_XXS = BlockType("iq3_xxs", 18, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
