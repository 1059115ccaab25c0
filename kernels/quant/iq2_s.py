"""IQ2_S: 256 weights in 2.56 bits each: 32 rows of a grid of 8, all 8 signs, a 4-bit scale for each 16 weights.

byte  0 ..  1  d       float16
byte  2 .. 33  qs      low 8 bits of the grid row, a byte for 8 weights
byte 34 .. 65  signs   bit j makes weight j of 8 negative
byte 66 .. 73  qh      high 2 bits of the grid row: bits 2l, 2l+1 of byte g are those of row l of group g of 32
byte 74 .. 81  scales  low nibble: the first 16 of 32 weights; high nibble: the others
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room
from refsd.kernels.quant.grids import IQ2_S as GRID
from refsd.kernels.quant.grids import SIGNS

BLOCK = 256
BYTES = 82
assert BYTES == 2 + BLOCK // 8 + BLOCK // 8 + BLOCK // 32 + BLOCK // 32


def dequantize(blocks, out=None):
    """Expand IQ2_S blocks.

        y = (d (scale + 1/2) / 4) sign grid

    blocks: uint8 [n, 82]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq2_s.
    """
    return _dequantize(frozen(blocks), GRID, SIGNS, room(blocks, BLOCK, out))


@kernel(slp=True, loops=False)
def _dequantize(blocks, grid, signs, y):
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


IQ2_S = BlockType("iq2_s", 22, BLOCK, BYTES, dequantize)
