"""Q4_1: 32 weights of 4 bits under one scale, above one minimum.

byte  0 ..  1  d   float16
byte  2 ..  3  m   float16
byte  4 .. 19  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, halves, room

BLOCK = 32
BYTES = 20
assert BYTES == 2 + 2 + BLOCK // 2


def dequantize(blocks, out=None):
    """Expand Q4_1 blocks.

        y = d q + m

    blocks: uint8 [n, 20]
    out:    float32 [n, 32], or None
    -> y:   float32 [n, 32]

    The product and the sum are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q4_1.
    """
    return _dequantize(frozen(blocks), halves(blocks, 0), halves(blocks, 2), room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, d, m, y):
    for b in numba.prange(blocks.shape[0]):
        for j in range(16):
            byte = blocks[b, 4 + j]
            y[b, j] = d[b] * np.float32(byte & 0xF) + m[b]
            y[b, j + 16] = d[b] * np.float32(byte >> 4) + m[b]
    return y


Q4_1 = BlockType("q4_1", 3, BLOCK, BYTES, dequantize)
