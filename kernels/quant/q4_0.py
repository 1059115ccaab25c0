"""Q4_0: 32 weights of 4 bits under one scale.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.packing import split_nibbles
from refsd.kernels.quant.symmetric_search import symmetric_search

BLOCK = 32
BYTES = 18
assert BYTES == 2 + BLOCK // 2


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand Q4_0 blocks.

        y = d (q - 8)

    blocks: uint8 [n, 18]
    -> y:   float32 [n, 32]

    Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q4_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            byte = blocks[b, 2 + j]
            y[b, j] = d * (np.float32(byte & 0xF) - np.float32(8))
            y[b, j + 16] = d * (np.float32(byte >> 4) - np.float32(8))
    return y


def quantize(x, importance=None):
    """Pack into Q4_0 blocks.

        d = x[argmax |x|] / -8        q = min(15, trunc(x / d + 8.5))

    x:          float32 [n, 32], finite
    -> blocks:  uint8 [n, 18]

    With importance: minimise sum_j w_j (y_j - x_j)^2, w = importance sqrt(mean(x^2) + x^2), the mean over the row.
    x / d is x times the float32 reciprocal of the unrounded d. Bit-exact with gguf-py, but for a block of nothing
    but -0: there d is -0, as in ggml, where gguf-py writes +0.
    Source: ggml-quants.c, quantize_row_q4_0_ref and quantize_row_q4_0_impl.
    """
    x = frozen(x)
    if importance is None:
        d, qs = _quantize(x)
        return np.concatenate([half_bytes(d), qs], axis=1)
    importance = columns(importance, x)
    fit = symmetric_search(x, error_weights(x, importance, importance.size, 1), 8)
    return np.concatenate([half_bytes(fit.scale), split_nibbles(fit.codes)], axis=1)


@kernel
def _quantize(x):
    d = np.empty(x.shape[0], np.float32)
    qs = np.empty((x.shape[0], 16), np.uint8)
    for b in numba.prange(x.shape[0]):
        largest = np.float32(0)
        for j in range(BLOCK):
            if abs(x[b, j]) > abs(largest):
                largest = x[b, j]
        d[b] = largest / np.float32(-8)
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for j in range(16):
            low = np.uint8(min(15, np.int32(x[b, j] * inverse + np.float32(8.5))))
            high = np.uint8(min(15, np.int32(x[b, j + 16] * inverse + np.float32(8.5))))
            qs[b, j] = low | high << np.uint8(4)
    return d, qs


Q4_0 = BlockType("q4_0", 2, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
