"""Q4_1: 32 weights of 4 bits under one scale, above one minimum.

byte  0 ..  1  d   float16
byte  2 ..  3  m   float16
byte  4 .. 19  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.affine_search import WEIGHTED_STEPS, affine_search
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.packing import split_nibbles

BLOCK = 32
BYTES = 20
assert BYTES == 2 + 2 + BLOCK // 2


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand Q4_1 blocks.

        y = d q + m

    blocks: uint8 [n, 20]
    -> y:   float32 [n, 32]

    The product and the sum are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q4_1.
    """
    for b in numba.prange(blocks.shape[0]):
        d, m = half(blocks, b, 0), half(blocks, b, 2)
        for j in range(16):
            byte = blocks[b, 4 + j]
            y[b, j] = d * np.float32(byte & 0xF) + m
            y[b, j + 16] = d * np.float32(byte >> 4) + m
    return y


def quantize(x, importance=None):
    """Pack into Q4_1 blocks.

        d = (max x - min x) / 15        m = min x        q = trunc((x - m) / d + 0.5)

    x:          float32 [n, 32], finite
    -> blocks:  uint8 [n, 20]

    The quotient is (x - m) times the float32 reciprocal of the unrounded d.
    With importance: minimise sum_j w_j (y_j - x_j)^2, w = importance sqrt(mean(x^2) + x^2), the mean over the row.
    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q4_1_ref and quantize_row_q4_1_impl.
    """
    x = frozen(x)
    if importance is None:
        d, m, codes = spread(x, 15)
    else:
        importance = columns(importance, x)
        weights = error_weights(x, importance, importance.size, 1)
        d, m, codes = affine_search(x, weights, 15, WEIGHTED_STEPS)
    return np.concatenate([half_bytes(d), half_bytes(m), split_nibbles(codes)], axis=1)


@kernel
def spread(x, top):
    """The scale, minimum and codes that spread each block evenly over 0 .. top."""
    d, m = np.empty(x.shape[0], np.float32), np.empty(x.shape[0], np.float32)
    codes = np.empty(x.shape, np.uint8)
    for b in numba.prange(x.shape[0]):
        low, high = x[b, 0], x[b, 0]
        for j in range(1, BLOCK):
            low = x[b, j] if x[b, j] < low else low
            high = x[b, j] if x[b, j] > high else high
        d[b], m[b] = (high - low) / np.float32(top), low
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for j in range(BLOCK):
            codes[b, j] = np.uint8(min(top, np.int32((x[b, j] - low) * inverse + np.float32(0.5))))
    return d, m, codes


Q4_1 = BlockType("q4_1", 3, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
