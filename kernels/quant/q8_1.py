"""Q8_1: 32 activations of 8 bits under one scale, with their sum; what ggml multiplies Q4_1 and Q5_1 with.

byte  0 ..  1  d   float16
byte  2 ..  3  s   float16, d times the sum of the codes: it meets a weight's minimum
byte  4 .. 35  qs  int8

gguf-py counts 40 bytes, with d and s in float32, as ggml had it in 2023. No file holds the type.
"""

import numba
import numpy as np

from refsd.kernels.quant import q8_0
from refsd.kernels.quant.block_type import BlockType, expander, half, half_bytes

BLOCK = 32
BYTES = 36
assert BYTES == 2 + 2 + BLOCK


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand Q8_1 blocks.

        y = d q

    blocks: uint8 [n, 36]
    -> y:   float32 [n, 32]

    Error: none. ggml has no such function: it only multiplies with these blocks.
    Source: ggml-common.h, block_q8_1.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(BLOCK):
            y[b, j] = d * np.float32(np.int8(blocks[b, 4 + j]))
    return y


def quantize(x):
    """Pack into Q8_1 blocks as ggml's reference does.

        d = max |x| / 127        q = x / d, rounded half away from zero        s = d sum q

    x:         float32 [n, 32], finite
    -> blocks: uint8 [n, 36]

    d and q are those of `q8_0.quantize`; s multiplies by the unrounded d. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q8_1_ref.
    """
    return _pack(*q8_0.codes(x))


def quantize_activation(x):
    """Pack into Q8_1 blocks as ggml's matmul does with its input on x86.

        d = max |x| / 127        q = x (127 / max |x|), rounded half to even        s = d sum q

    x:         float32 [n, 32], finite
    -> blocks: uint8 [n, 36]

    d and q are those of `q8_0.quantize_activation`; s multiplies by the unrounded d. Bit-exact with ggml's C.
    Source: ggml-cpu/arch/x86/quants.c, quantize_row_q8_1.
    """
    return _pack(*q8_0.activation_codes(x))


@np.errstate(over="ignore", invalid="ignore")
def _pack(d, qs):
    s = d * qs.sum(axis=1, dtype=np.int32).astype(np.float32)
    return np.concatenate([half_bytes(d), half_bytes(s), qs.view(np.uint8)], axis=1)


Q8_1 = BlockType("q8_1", 9, BLOCK, BYTES, dequantize, quantize, quantize_activation)
