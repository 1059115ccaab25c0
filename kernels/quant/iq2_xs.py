"""IQ2_XS: 256 weights in 2.31 bits each: 32 rows of a grid of 8 and their signs, a 4-bit scale for each 16 weights.

byte  0 ..  1  d       float16
byte  2 .. 65  qs      little-endian words of 16 bits, one for 8 weights: bits 0 .. 8 the grid row, bits 9 .. 15 the
                       signs (the eighth sign makes the minuses even)
byte 66 .. 73  scales  low nibble: the first 16 of 32 weights; high nibble: the others
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room, word16
from refsd.kernels.quant.grids import EVEN_SIGNS
from refsd.kernels.quant.grids import IQ2_XS as GRID

BLOCK = 256
BYTES = 74
assert BYTES == 2 + 2 * BLOCK // 8 + BLOCK // 32


def dequantize(blocks, out=None):
    """Expand IQ2_XS blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 74]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_xs.
    """
    return _dequantize(frozen(blocks), GRID, EVEN_SIGNS, room(blocks, BLOCK, out))


@kernel(slp=True, loops=False)
def _dequantize(blocks, grid, signs, y):
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


IQ2_XS = BlockType("iq2_xs", 17, BLOCK, BYTES, dequantize)
