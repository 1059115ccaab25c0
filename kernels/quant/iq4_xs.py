"""IQ4_XS: 256 weights of 4 bits, IQ4_NL's codes, in 8 groups of 32, each group with a 6-bit scale.

byte 0 ..   1  d         float16
byte 2 ..   3  scales_h  a little-endian word: bits 2g, 2g+1 the high bits of the scale of group g
byte 4 ..   7  scales_l  low 4 bits of the scales, a nibble a group, low one first
byte 8 .. 135  qs        16 bytes a group: low nibbles weights 0 .. 15, high nibbles weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, half, room, word16
from refsd.kernels.quant.iq4_nl import VALUES

BLOCK = 256
BYTES = 136
assert BYTES == 2 + 2 + BLOCK // 64 + BLOCK // 2


def dequantize(blocks, out=None):
    """Expand IQ4_XS blocks.

        y = (d (scale - 32)) VALUES[q]

    blocks: uint8 [n, 136]
    out:    float32 [n, 256], or None
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq4_xs.
    """
    return _dequantize(frozen(blocks), VALUES, room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, values, y):
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


IQ4_XS = BlockType("iq4_xs", 23, BLOCK, BYTES, dequantize)
