"""TQ2_0: 256 weights of 2 bits under one scale, made for ternary ones: -1, 0, 1 (the code 3 is 2).

byte  0 .. 63  qs  32 bytes for 128 weights: bits 2k, 2k+1 of byte j are weight 32 k + j
byte 64 .. 65  d   float16
"""

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, expander, frozen, half, half_bytes
from refsd.kernels.quant.packing import two_bit_planes
from refsd.kernels.quant.tq1_0 import ternary

BLOCK = 256
BYTES = 66
assert BYTES == BLOCK // 4 + 2


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand TQ2_0 blocks.

        y = d (q - 1)

    blocks: uint8 [n, 66]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_tq2_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 64)
        for h in range(2):
            for k in range(4):
                for j in range(32):
                    q = blocks[b, 32 * h + j] >> np.uint8(2 * k) & np.uint8(0x3)
                    y[b, 128 * h + 32 * k + j] = d * (np.float32(q) - np.float32(1))
    return y


def quantize(x):
    """Pack into TQ2_0 blocks.

        d = max |x|        q = x / d + 1, rounded half away from zero

    x:         float32 [n, 256], finite
    -> blocks: uint8 [n, 66]

    d and q are those of TQ1_0. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_tq2_0_ref.
    """
    d, q = ternary(frozen(x))
    return np.concatenate([two_bit_planes(q & 3), half_bytes(d)], axis=1)


TQ2_0 = BlockType("tq2_0", 35, BLOCK, BYTES, dequantize, quantize)
