"""IQ3_S: 256 weights in 3.44 bits each: 64 rows of a grid of 4, all signs, a 4-bit scale for each 32 weights.

byte   0 ..   1  d       float16
byte   2 ..  65  qs      low 8 bits of the grid row, a byte for 4 weights
byte  66 ..  73  qh      the ninth bit: bit l of byte g is that of row l of group g of 32
byte  74 .. 105  signs   bit j makes weight j of 8 negative
byte 106 .. 109  scales  low nibble: the first 32 of 64 weights; high nibble: the others
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room
from refsd.kernels.quant.grids import IQ3_S as GRID
from refsd.kernels.quant.grids import SIGNS

BLOCK = 256
BYTES = 110
assert BYTES == 2 + BLOCK // 4 + BLOCK // 32 + BLOCK // 8 + BLOCK // 64


def dequantize(blocks, out=None):
    """Expand IQ3_S blocks.

        y = (d (2 scale + 1)) sign grid

    blocks: uint8 [n, 110]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq3_s.
    """
    return _dequantize(frozen(blocks), GRID, SIGNS, room(blocks, BLOCK, out))


@kernel(slp=True, loops=False)
def _dequantize(blocks, grid, signs, y):
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


IQ3_S = BlockType("iq3_s", 21, BLOCK, BYTES, dequantize)
