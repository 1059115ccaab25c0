"""Q5_0: 32 weights of 5 bits under one scale.

byte  0 ..  1  d   float16
byte  2 ..  5  qh  bit j is the fifth bit of weight j
byte  6 .. 21  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.packing import bits, split_nibbles
from refsd.kernels.quant.symmetric_search import symmetric_search

BLOCK = 32
BYTES = 22
assert BYTES == 2 + BLOCK // 8 + BLOCK // 2


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q5_0 blocks.

        y = d (q - 16)

    blocks: uint8 [n, 22]
    -> y:   float32 [n, 32]

    Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q5_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            byte = blocks[b, 6 + j]
            fifth0 = blocks[b, 2 + j // 8] >> (j % 8) & 1
            fifth1 = blocks[b, 4 + j // 8] >> (j % 8) & 1
            y[b, j] = d * (np.float32(byte & 0xF | fifth0 << 4) - np.float32(16))
            y[b, j + 16] = d * (np.float32(byte >> 4 | fifth1 << 4) - np.float32(16))
    return y


def quantize(x, importance=None):
    """Pack into Q5_0 blocks.

        d = x[argmax |x|] / -16        q = min(31, trunc(x / d + 16.5))

    x:          float32 [n, 32], finite
    -> blocks:  uint8 [n, 22]

    x / d is x times the float32 reciprocal of the unrounded d.
    With importance: minimise sum_j w_j (y_j - x_j)^2, w = importance sqrt(mean(x^2) + x^2), the mean over the row.
    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q5_0_ref and quantize_row_q5_0_impl.
    """
    x = frozen(x)
    if importance is None:
        d, codes = _quantize(x)
    else:
        importance = columns(importance, x)
        d, codes = symmetric_search(x, error_weights(x, importance, importance.size, 1), 16)
    return np.concatenate([half_bytes(d), bits(codes, 4), split_nibbles(codes)], axis=1)


@kernel
def _quantize(x):
    d = np.empty(x.shape[0], np.float32)
    codes = np.empty(x.shape, np.uint8)
    for b in numba.prange(x.shape[0]):
        largest = np.float32(0)
        for j in range(BLOCK):
            if abs(x[b, j]) > abs(largest):
                largest = x[b, j]
        d[b] = largest / np.float32(-16)
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for j in range(BLOCK):
            codes[b, j] = np.uint8(min(31, np.int32(x[b, j] * inverse + np.float32(16.5))))
    return d, codes


Q5_0 = BlockType("q5_0", 6, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
