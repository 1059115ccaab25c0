"""Q5_1: 32 weights of 5 bits under one scale, above one minimum.

byte  0 ..  1  d   float16
byte  2 ..  3  m   float16
byte  4 ..  7  qh  bit j is the fifth bit of weight j
byte  8 .. 23  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels.quant.affine_search import WEIGHTED_STEPS, affine_search
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.packing import bits, split_nibbles
from refsd.kernels.quant.q4_1 import spread

BLOCK = 32
BYTES = 24
assert BYTES == 2 + 2 + BLOCK // 8 + BLOCK // 2


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q5_1 blocks.

        y = d q + m

    blocks: uint8 [n, 24]
    -> y:   float32 [n, 32]

    The product and the sum are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q5_1.
    """
    for b in numba.prange(blocks.shape[0]):
        d, m = half(blocks, b, 0), half(blocks, b, 2)
        for j in range(16):
            byte = blocks[b, 8 + j]
            fifth0 = blocks[b, 4 + j // 8] >> (j % 8) & 1
            fifth1 = blocks[b, 6 + j // 8] >> (j % 8) & 1
            y[b, j] = d * np.float32(byte & 0xF | fifth0 << 4) + m
            y[b, j + 16] = d * np.float32(byte >> 4 | fifth1 << 4) + m
    return y


def quantize(x, importance=None):
    """Pack into Q5_1 blocks.

        d = (max x - min x) / 31        m = min x        q = trunc((x - m) / d + 0.5)

    x:          float32 [n, 32], finite
    -> blocks:  uint8 [n, 24]

    The quotient is (x - m) times the float32 reciprocal of the unrounded d.
    With importance: minimise sum_j w_j (y_j - x_j)^2, w = importance sqrt(mean(x^2) + x^2), the mean over the row.
    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q5_1_ref and quantize_row_q5_1_impl.
    """
    x = frozen(x)
    if importance is None:
        d, m, codes = spread(x, 31)
    else:
        importance = columns(importance, x)
        weights = error_weights(x, importance, importance.size, 1)
        d, m, codes = affine_search(x, weights, 31, WEIGHTED_STEPS)
    return np.concatenate([half_bytes(d), half_bytes(m), bits(codes, 4), split_nibbles(codes)], axis=1)


Q5_1 = BlockType("q5_1", 7, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
