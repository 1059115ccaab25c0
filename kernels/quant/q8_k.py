"""Q8_K: 256 activations of 8 bits under one float32 scale; what ggml multiplies K-quants with. Never in a file.

byte   0 ..   3  d      float32
byte   4 .. 259  qs     int8
byte 260 .. 291  bsums  int16, the sum of each 16 codes: it meets a K-quant's minimum
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, room
from refsd.kernels.quant.rounding import nearest

BLOCK = 256
BYTES = 292
assert BYTES == 4 + BLOCK + 2 * (BLOCK // 16)


def dequantize(blocks, out=None):
    """Expand Q8_K blocks.

        y = d q

    blocks: uint8 [n, 292]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none.
    Source: ggml-quants.c, dequantize_row_q8_K.
    """
    blocks = frozen(blocks)
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")[:, 0]
    return _dequantize(blocks.view(np.int8), d, room(blocks, BLOCK, out))


@kernel
def _dequantize(blocks, d, y):
    for b in numba.prange(blocks.shape[0]):
        for j in range(BLOCK):
            y[b, j] = d[b] * np.float32(blocks[b, 4 + j])
    return y


def quantize(x):
    """Pack into Q8_K blocks.

        s = -127 / x[argmax |x|]        q = min(127, s x rounded half to even)        d = 1 / s

    x:         float32 [n, 256], finite
    -> blocks: uint8 [n, 292]

    Source: ggml-quants.c, quantize_row_q8_K_ref.
    """
    d, qs = _quantize(frozen(x))
    bsums = qs.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    parts = d.astype("<f4")[:, None], qs, bsums.astype("<i2")
    return np.concatenate([p.view(np.uint8) for p in parts], axis=1)


@kernel
def _quantize(x):
    d = np.empty(x.shape[0], np.float32)
    qs = np.empty(x.shape, np.int8)
    for b in numba.prange(x.shape[0]):
        largest = np.float32(0)
        for j in range(BLOCK):
            if abs(x[b, j]) > abs(largest):
                largest = x[b, j]
        scale = np.float32(-127) / largest if largest != 0 else np.float32(0)
        d[b] = np.float32(1) / scale if largest != 0 else np.float32(0)
        for j in range(BLOCK):
            qs[b, j] = np.int8(min(np.int32(127), nearest(scale * x[b, j])))
    return d, qs


Q8_K = BlockType("q8_k", 15, BLOCK, BYTES, dequantize, quantize, quantize)
