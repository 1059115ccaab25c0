"""Q2_0: 64 weights of 2 bits under one scale: -1, 0, 1 or 2 times it.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  bits 2i, 2i+1 of byte j are weight 4 j + i
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, expander, frozen, half, half_bytes
from refsd.kernels.quant.rounding import half_away

BLOCK = 64
BYTES = 18
assert BYTES == 2 + BLOCK // 4


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand Q2_0 blocks.

        y = d (q - 1)

    blocks: uint8 [n, 18]
    -> y:   float32 [n, 64]

    Error: none; bit-exact with ggml.
    Source: ggml-quants.c, dequantize_row_q2_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            byte = blocks[b, 2 + j]
            for i in range(4):
                q = byte >> np.uint8(2 * i) & np.uint8(0x3)
                y[b, 4 * j + i] = d * (np.float32(q) - np.float32(1))
    return y


def quantize(x):
    """Pack into Q2_0 blocks.

        d = max |x|        q = x / d + 1, rounded half away from zero

    x:         float32 [n, 64], finite
    -> blocks: uint8 [n, 18]

    x / d is x times the float32 reciprocal of d. The code 3, for 2 d, is never used. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q2_0_ref.
    """
    d, qs = _quantize(frozen(x))
    return np.concatenate([half_bytes(d), qs], axis=1)


@kernel
def _quantize(x):
    d = np.empty(x.shape[0], np.float32)
    qs = np.zeros((x.shape[0], BLOCK // 4), np.uint8)
    for b in numba.prange(x.shape[0]):
        largest = np.float32(0)
        for j in range(BLOCK):
            largest = abs(x[b, j]) if abs(x[b, j]) > largest else largest
        d[b] = largest
        inverse = np.float32(1) / largest if largest > 0 else np.float32(0)
        for j in range(BLOCK):
            q = np.uint8(min(max(np.int32(half_away(x[b, j] * inverse)) + 1, 0), 3))
            qs[b, j // 4] |= q << np.uint8(j % 4 * 2)
    return d, qs


Q2_0 = BlockType("q2_0", 42, BLOCK, BYTES, dequantize, quantize)
