"""MXFP4: 32 weights as 4-bit floats (E2M1: a sign, 2 bits of exponent, 1 of mantissa) under one power of two.

byte  0        e   E8M0: the scale is 2^(e - 127)
byte  1 .. 16  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, expander, frozen
from refsd.kernels.quant.packing import split_nibbles

BLOCK = 32
BYTES = 17
assert BYTES == 1 + BLOCK // 2

# Twice what the 16 codes stand for, which makes them whole. -0 is 0. Source: ggml-common.h, kvalues_fp4.
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
VALUES = frozen(np.array(_DOUBLED, np.int8))
# Half the scale, to go with them: 2^(e - 128); the code 255, a NaN in the standard, is 2^127 to ggml.
HALF_SCALES = frozen(np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32))


@expander(BLOCK, VALUES, HALF_SCALES, slp=True, loops=False)
def dequantize(blocks, values, scales, y):
    """Expand MXFP4 blocks.

        y = 2^(e - 128) VALUES[q]

    blocks: uint8 [n, 17]
    -> y:   float32 [n, 32]

    Error: none; bit-exact with ggml and gguf-py.
    Source: OCP Microscaling Formats 1.0, 5.3.3 and 5.4; ggml-quants.c, dequantize_row_mxfp4.
    """
    for b in numba.prange(blocks.shape[0]):
        d = scales[blocks[b, 0]]
        for j in range(16):
            y[b, j] = d * np.float32(values[blocks[b, 1 + j] & np.uint8(0xF)])
        for j in range(16):
            y[b, 16 + j] = d * np.float32(values[blocks[b, 1 + j] >> np.uint8(4)])
    return y


@np.errstate(divide="ignore", invalid="ignore")
def quantize(x):
    """Pack into MXFP4 blocks.

        e = floor(log2(max |x|)) + 125        q = argmin |2^(e - 128) VALUES[q] - x|, the first of equals

    x:         float32 [n, 32], finite
    -> blocks: uint8 [n, 17]

    The largest |x| thus lies in [4, 8) times the scale, and beyond 6 it is cut off. log2 is rounded to float32
    before the floor: just below a power of two it is that power. Where the largest |x| is below 2^-125, e is taken
    modulo 256 and the block decodes to 0. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_mxfp4_ref.
    """
    x = frozen(x)
    largest = abs(x).max(axis=1)
    exponent = np.floor(np.log2(largest.astype(np.float64)).astype(np.float32)) + 125
    e = np.where(largest > 0, exponent, 0).astype(np.int32).astype(np.uint8)
    return np.concatenate([e[:, None], split_nibbles(nearest_values(x, HALF_SCALES[e]))], axis=1)


@kernel
def nearest_values(x, scale):
    """The code whose value times the scale is nearest to x. float32 [m, size], [m] -> uint8 [m, size]"""
    codes = np.empty(x.shape, np.uint8)
    for g in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            best, least = np.uint8(0), abs(np.float32(_DOUBLED[0]) * scale[g] - x[g, j])
            for k in range(1, 16):
                error = abs(np.float32(_DOUBLED[k]) * scale[g] - x[g, j])
                best = np.uint8(k) if error < least else best
                least = error if error < least else least
            codes[g, j] = best
    return codes


MXFP4 = BlockType("mxfp4", 39, BLOCK, BYTES, dequantize, quantize)
