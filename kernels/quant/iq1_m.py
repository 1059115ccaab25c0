"""IQ1_M: 256 weights in 1.75 bits each: 32 rows of a ternary grid of 8 with a shift each; a scale for 16 weights.

byte  0 .. 31  qs      low 8 bits of the grid row, a byte for 8 weights
byte 32 .. 47  qh      a nibble for 8 weights, low one first: bits 0 .. 2 the high bits of the grid row, bit 3
                       the sign of the shift
byte 48 .. 55  scales  four little-endian words of 16 bits: bits 3 k .. 3 k + 2 of word w the scale of weights
                       64 w + 16 k and on; bits 12 .. 15 of word w are bits 4 w .. 4 w + 3 of d, a float16
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half_of, room, word16
from refsd.kernels.quant.grids import IQ1 as GRID

BLOCK = 256
BYTES = 56
assert BYTES == BLOCK // 8 + BLOCK // 16 + 4 * 2


def dequantize(blocks, out=None):
    """Expand IQ1_M blocks.

        y = (d (2 scale + 1)) (grid +- 1/8)

    blocks: uint8 [n, 56]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq1_m.
    """
    return _dequantize(frozen(blocks), GRID, room(blocks, BLOCK, out))


@kernel(slp=True, loops=False)
def _dequantize(blocks, grid, y):
    for b in numba.prange(blocks.shape[0]):
        bits = np.uint32(0)
        for w in range(4):
            bits |= word16(blocks, b, 48 + 2 * w) >> np.uint32(12) << np.uint32(4 * w)
        d = half_of(bits)
        for l in range(32):
            code = word16(blocks, b, 48 + l // 8 * 2) >> np.uint32(l // 2 % 4 * 3) & np.uint32(0x7)
            scale = d * (np.float32(2) * np.float32(code) + np.float32(1))
            nibble = blocks[b, 32 + l // 2] >> np.uint8(l % 2 * 4)
            shift = np.float32(-0.125) if nibble & np.uint8(0x8) else np.float32(0.125)
            row = np.uint32(blocks[b, l]) | np.uint32(nibble & np.uint8(0x7)) << np.uint32(8)
            for j in range(8):
                y[b, 8 * l + j] = scale * (np.float32(grid[row, j]) + shift)
    return y


IQ1_M = BlockType("iq1_m", 29, BLOCK, BYTES, dequantize)
