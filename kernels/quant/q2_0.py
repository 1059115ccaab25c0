"""Q2_0: 64 weights of 2 bits under one scale: -1, 0, 1 or 2 times it.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  bits 2i, 2i+1 of byte j are weight 4 j + i
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room

BLOCK = 64
BYTES = 18
assert BYTES == 2 + BLOCK // 4


def dequantize(blocks, out=None):
    """Expand Q2_0 blocks.

        y = d (q - 1)

    blocks: uint8 [n, 18]
    out:    float32 [n, 64], or None
    -> y:   float32 [n, 64]

    Error: none; bit-exact with ggml.
    Source: ggml-quants.c, dequantize_row_q2_0.
    """
    return _dequantize(frozen(blocks), room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, y):
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            byte = blocks[b, 2 + j]
            for i in range(4):
                q = byte >> np.uint8(2 * i) & np.uint8(0x3)
                y[b, 4 * j + i] = d * (np.float32(q) - np.float32(1))
    return y


Q2_0 = BlockType("q2_0", 42, BLOCK, BYTES, dequantize)
