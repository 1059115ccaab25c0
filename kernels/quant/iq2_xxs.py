"""IQ2_XXS: 256 weights in 2.06 bits each: 32 rows of a grid of 8, signs, a 4-bit scale for each 32 weights.

byte  0 ..  1  d   float16
byte  2 .. 65  qs  8 bytes for 32 weights: 4 bytes, each the grid row of 8 weights; then a little-endian word:
                   bits 7 l .. 7 l + 6 the signs of row l (the eighth sign makes the minuses even),
                   bits 28 .. 31 the scale
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room, word32
from refsd.kernels.quant.grids import EVEN_SIGNS
from refsd.kernels.quant.grids import IQ2_XXS as GRID

BLOCK = 256
BYTES = 66
assert BYTES == 2 + (BLOCK // 32) * (4 + 4)


def dequantize(blocks, out=None):
    """Expand IQ2_XXS blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 66]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_xxs.
    """
    return _dequantize(frozen(blocks), GRID, EVEN_SIGNS, room(blocks, BLOCK, out))


@kernel(slp=True, loops=False)
def _dequantize(blocks, grid, signs, y):
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


IQ2_XXS = BlockType("iq2_xxs", 16, BLOCK, BYTES, dequantize)
