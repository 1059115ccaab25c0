"""Q1_0: 128 weights of one bit under one scale.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  bit i of byte j is weight 8 j + i: set d, clear -d
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, expander, frozen, half, half_bytes
from refsd.kernels.quant.grids import SIGNS

BLOCK = 128
BYTES = 18
assert BYTES == 2 + BLOCK // 8


@expander(BLOCK, SIGNS, slp=True, loops=False)
def dequantize(blocks, signs, y):
    """Expand Q1_0 blocks.

        y = d (2 q - 1)

    blocks: uint8 [n, 18]
    -> y:   float32 [n, 128]

    Error: none; bit-exact with ggml.
    Source: ggml-quants.c, dequantize_row_q1_0.
    """
    for b in numba.prange(blocks.shape[0]):
        minus_d = -half(blocks, b, 0)
        for j in range(16):
            byte = blocks[b, 2 + j]
            for i in range(8):
                y[b, 8 * j + i] = minus_d * np.float32(signs[byte, i])
    return y


def quantize(x):
    """Pack into Q1_0 blocks.

        d = mean |x|        q = 1 where x >= 0

    x:         float32 [n, 128], finite
    -> blocks: uint8 [n, 18]

    The sum runs in float32, one element after the other. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q1_0_ref.
    """
    x = frozen(x)
    return np.concatenate([half_bytes(_mean_magnitude(x)), np.packbits(x >= 0, axis=1, bitorder="little")], axis=1)


@kernel
def _mean_magnitude(x):
    d = np.empty(x.shape[0], np.float32)
    for b in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(BLOCK):
            total += abs(x[b, j])
        d[b] = total / np.float32(BLOCK)
    return d


Q1_0 = BlockType("q1_0", 41, BLOCK, BYTES, dequantize, quantize)
