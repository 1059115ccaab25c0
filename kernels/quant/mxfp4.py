"""MXFP4: 32 weights as 4-bit floats (E2M1: a sign, 2 bits of exponent, 1 of mantissa) under one power of two.

byte  0        e   E8M0: the scale is 2^(e - 127)
byte  1 .. 16  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, room

BLOCK = 32
BYTES = 17
assert BYTES == 1 + BLOCK // 2

# Twice what the 16 codes stand for, which makes them whole. -0 is 0. Source: ggml-common.h, kvalues_fp4.
VALUES = frozen(np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8))
# Half the scale, to go with them: 2^(e - 128); the code 255, a NaN in the standard, is 2^127 to ggml.
HALF_SCALES = frozen(np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32))


def dequantize(blocks, out=None):
    """Expand MXFP4 blocks.

        y = 2^(e - 128) VALUES[q]

    blocks: uint8 [n, 17]
    out:    float32 [n, 32], or None
    -> y:   float32 [n, 32]

    Error: none; bit-exact with ggml and gguf-py.
    Source: OCP Microscaling Formats 1.0, 5.3.3 and 5.4; ggml-quants.c, dequantize_row_mxfp4.
    """
    return _dequantize(frozen(blocks), VALUES, HALF_SCALES, room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, values, scales, y):
    for b in numba.prange(blocks.shape[0]):
        d = scales[blocks[b, 0]]
        for j in range(16):
            y[b, j] = d * np.float32(values[blocks[b, 1 + j] & np.uint8(0xF)])
        for j in range(16):
            y[b, 16 + j] = d * np.float32(values[blocks[b, 1 + j] >> np.uint8(4)])
    return y


MXFP4 = BlockType("mxfp4", 39, BLOCK, BYTES, dequantize)
