"""Q5_0: 32 weights of 5 bits under one scale.

byte  0 ..  1  d   float16
byte  2 ..  5  qh  bit j is the fifth bit of weight j
byte  6 .. 21  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, halves, room

BLOCK = 32
BYTES = 22
assert BYTES == 2 + BLOCK // 8 + BLOCK // 2


def dequantize(blocks, out=None):
    """Expand Q5_0 blocks.

        y = d (q - 16)

    blocks: uint8 [n, 22]
    out:    float32 [n, 32], or None
    -> y:   float32 [n, 32]

    Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q5_0.
    """
    return _dequantize(frozen(blocks), halves(blocks, 0), room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, d, y):
    for b in numba.prange(blocks.shape[0]):
        for j in range(16):
            byte = blocks[b, 6 + j]
            fifth0 = blocks[b, 2 + j // 8] >> (j % 8) & 1
            fifth1 = blocks[b, 4 + j // 8] >> (j % 8) & 1
            y[b, j] = d[b] * (np.float32(byte & 0xF | fifth0 << 4) - np.float32(16))
            y[b, j + 16] = d[b] * (np.float32(byte >> 4 | fifth1 << 4) - np.float32(16))
    return y


Q5_0 = BlockType("q5_0", 6, BLOCK, BYTES, dequantize)
