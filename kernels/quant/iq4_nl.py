"""IQ4_NL: 32 weights of 4 bits under one scale, the codes standing closer near zero.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room

BLOCK = 32
BYTES = 18
assert BYTES == 2 + BLOCK // 2

# What the 16 codes stand for. Source: ggml-common.h, kvalues_iq4nl.
VALUES = frozen(np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8))


def dequantize(blocks, out=None):
    """Expand IQ4_NL blocks.

        y = d VALUES[q]

    blocks: uint8 [n, 18]
    out:    float32 [n, 32], or None
    -> y:   float32 [n, 32]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq4_nl.
    """
    return _dequantize(frozen(blocks), VALUES, room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, values, y):
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            y[b, j] = d * np.float32(values[blocks[b, 2 + j] & np.uint8(0xF)])
        for j in range(16):
            y[b, 16 + j] = d * np.float32(values[blocks[b, 2 + j] >> np.uint8(4)])
    return y


IQ4_NL = BlockType("iq4_nl", 20, BLOCK, BYTES, dequantize)
