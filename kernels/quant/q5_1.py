"""Q5_1: 32 weights of 5 bits under one scale, above one minimum.

byte  0 ..  1  d   float16
byte  2 ..  3  m   float16
byte  4 ..  7  qh  bit j is the fifth bit of weight j
byte  8 .. 23  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, halves, room

BLOCK = 32
BYTES = 24
assert BYTES == 2 + 2 + BLOCK // 8 + BLOCK // 2


def dequantize(blocks, out=None):
    """Expand Q5_1 blocks.

        y = d q + m

    blocks: uint8 [n, 24]
    out:    float32 [n, 32], or None
    -> y:   float32 [n, 32]

    The product and the sum are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q5_1.
    """
    return _dequantize(frozen(blocks), halves(blocks, 0), halves(blocks, 2), room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, d, m, y):
    for b in numba.prange(blocks.shape[0]):
        for j in range(16):
            byte = blocks[b, 8 + j]
            fifth0 = blocks[b, 4 + j // 8] >> (j % 8) & 1
            fifth1 = blocks[b, 6 + j // 8] >> (j % 8) & 1
            y[b, j] = d[b] * np.float32(byte & 0xF | fifth0 << 4) + m[b]
            y[b, j + 16] = d[b] * np.float32(byte >> 4 | fifth1 << 4) + m[b]
    return y


Q5_1 = BlockType("q5_1", 7, BLOCK, BYTES, dequantize)
