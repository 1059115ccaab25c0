"""IQ2_XXS: 256 weights in 2.06 bits each: 32 rows of a grid of 8, signs, a 4-bit scale for each 32 weights.

byte  0 ..  1  d   float16
byte  2 .. 65  qs  8 bytes for 32 weights: 4 bytes, each the grid row of 8 weights; then a little-endian word:
                   bits 7 l .. 7 l + 6 the signs of row l (the eighth sign makes the minuses even),
                   bits 28 .. 31 the scale
"""

import functools

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, word32
from refsd.kernels.quant.grid_blocks import assembled, sign_words
from refsd.kernels.quant.grid_search import GridRule, grid_search
from refsd.kernels.quant.grid_table import grid_table
from refsd.kernels.quant.grids import EVEN_SIGNS
from refsd.kernels.quant.grids import IQ2_XXS as GRID
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.positive_search import positive_search
from refsd.kernels.quant.signs import split_signs

BLOCK = 256
BYTES = 66
assert BYTES == 2 + (BLOCK // 32) * (4 + 4)


@expander(BLOCK, GRID, EVEN_SIGNS, slp=True, loops=False)
def dequantize(blocks, grid, signs, y):
    """Expand IQ2_XXS blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 66]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_xxs.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for g in range(8):
            word = word32(blocks, b, 6 + 8 * g)
            scale = d * (np.float32(word >> np.uint32(28)) + np.float32(0.5)) * np.float32(0.25)
            for l in range(4):
                row, sign = blocks[b, 2 + 8 * g + l], word >> np.uint32(7 * l) & np.uint32(0x7F)
                for j in range(8):
                    y[b, 32 * g + 8 * l + j] = scale * np.float32(grid[row, j] * signs[sign, j])
    return y


def quantize(x, importance=None):
    """Pack into IQ2_XXS blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale, signs and rows of the grid; then round the scales

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 66]

    w = importance sqrt(mean(x^2) + x^2), the mean over the block. The first scale is that of levels 0 .. 4 without
    a grid. Bit-exact with ggml's C, which has no way without importance.
    Source: ggml-quants.c, quantize_row_iq2_xxs_impl.
    """
    x = frozen(x)
    weights = error_weights(x, columns(importance, x), BLOCK, 1).reshape(-1, 32)
    magnitudes, signs = split_signs(x.reshape(-1, 32), weights, True)
    start, _ = positive_search(magnitudes, weights, 4)
    largest = np.maximum(start, 0) * np.float32(3)
    rule = GridRule(6, 0.1, every=True, always=True)
    found = assembled(grid_search(magnitudes, weights, largest, start, _table(), rule), signs, largest, True)
    rows, words = found.rows.astype(np.uint8), sign_words(found.signs, found.scales)
    qs = np.concatenate([rows.reshape(-1, 8, 4), words.reshape(-1, 8, 4)], axis=2)
    return np.concatenate([half_bytes(found.d), qs.reshape(-1, 64)], axis=1)


@functools.cache
def _table():
    return grid_table(GRID, 2)


IQ2_XXS = BlockType("iq2_xxs", 16, BLOCK, BYTES, dequantize, quantize, importance=Importance.REQUIRED)
