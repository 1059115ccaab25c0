"""IQ4_XS: 256 weights of 4 bits, IQ4_NL's codes, in 8 groups of 32, each group with a 6-bit scale.

byte 0 ..   1  d         float16
byte 2 ..   3  scales_h  a little-endian word: bits 2g, 2g+1 the high bits of the scale of group g
byte 4 ..   7  scales_l  low 4 bits of the scales, a nibble a group, low one first
byte 8 .. 135  qs        16 bytes a group: low nibbles weights 0 .. 15, high nibbles weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, word16
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.iq4_nl import VALUES
from refsd.kernels.quant.nonlinear_search import nonlinear_codes, nonlinear_search
from refsd.kernels.quant.packing import split_nibbles
from refsd.kernels.quant.rounding import clipped
from refsd.kernels.quant.symmetric_search import squares

BLOCK = 256
BYTES = 136
assert BYTES == 2 + 2 + BLOCK // 64 + BLOCK // 2


@expander(BLOCK, VALUES, slp=True, loops=False)
def dequantize(blocks, values, y):
    """Expand IQ4_XS blocks.

        y = (d (scale - 32)) VALUES[q]

    blocks: uint8 [n, 136]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq4_xs.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        high = word16(blocks, b, 2)
        for g in range(8):
            low = np.uint32(blocks[b, 4 + g // 2] >> np.uint8(g % 2 * 4) & np.uint8(0xF))
            code = low | (high >> np.uint32(2 * g) & np.uint32(0x3)) << np.uint32(4)
            scale = d * (np.float32(code) - np.float32(32))
            for j in range(16):
                y[b, 32 * g + j] = scale * np.float32(values[blocks[b, 8 + 16 * g + j] & np.uint8(0xF)])
            for j in range(16):
                y[b, 32 * g + 16 + j] = scale * np.float32(values[blocks[b, 8 + 16 * g + j] >> np.uint8(4)])
    return y


@np.errstate(over="ignore", invalid="ignore")
def quantize(x, importance=None):
    """Pack into IQ4_XS blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale; then round the scales to 6 bits, then x anew

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 136]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block. x is rounded anew
    under the scale before d is rounded to float16. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_iq4_xs.
    """
    x = frozen(x)
    groups = x.reshape(-1, 32)
    weights = (
        squares(groups) if importance is None else error_weights(x, columns(importance, x), BLOCK, 1, BLOCK // 2)
    )
    d, scales = _scales(nonlinear_search(groups, weights.reshape(-1, 32)).reshape(-1, 8))
    codes = split_nibbles(nonlinear_codes(groups, (d[:, None] * scales.astype(np.float32)).reshape(-1)))
    stored = (scales + 32).view(np.uint8)
    low = stored[:, ::2] & 0xF | stored[:, 1::2] << 4
    high = np.bitwise_or.reduce((stored >> 4).astype("<u2") << np.arange(0, 16, 2, dtype="<u2"), axis=1)
    return np.concatenate([half_bytes(d), high[:, None].view(np.uint8), low, codes.reshape(-1, 128)], axis=1)


@kernel
def _scales(values):
    """d = -largest / 32, and value / d in -32 .. 31. float32 [n, 8] -> float32 [n], int8 [n, 8]"""
    d = np.empty(values.shape[0], np.float32)
    codes = np.empty(values.shape, np.int8)
    for b in numba.prange(values.shape[0]):
        largest = np.float32(0)
        for g in range(values.shape[1]):
            largest = values[b, g] if abs(values[b, g]) > abs(largest) else largest
        d[b] = -largest / np.float32(32)
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for g in range(values.shape[1]):
            codes[b, g] = np.int8(clipped(inverse * values[b, g], -32, 31))
    return d, codes


IQ4_XS = BlockType("iq4_xs", 23, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
