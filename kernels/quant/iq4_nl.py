"""IQ4_NL: 32 weights of 4 bits under one scale, the codes standing closer near zero.

byte  0 ..  1  d   float16
byte  2 .. 17  qs  low nibbles: weights 0 .. 15; high nibbles: weights 16 .. 31
"""

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.importance import columns, error_weights
from refsd.kernels.quant.nonlinear_search import LEVELS, nonlinear_codes, nonlinear_search
from refsd.kernels.quant.packing import split_nibbles
from refsd.kernels.quant.symmetric_search import squares

BLOCK = 32
BYTES = 18
assert BYTES == 2 + BLOCK // 2

# What the 16 codes stand for.
VALUES = frozen(np.array(LEVELS, np.int8))


@expander(BLOCK, VALUES, slp=True, loops=False)
def dequantize(blocks, values, y):
    """Expand IQ4_NL blocks.

        y = d VALUES[q]

    blocks: uint8 [n, 18]
    -> y:   float32 [n, 32]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_iq4_nl.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(16):
            y[b, j] = d * np.float32(values[blocks[b, 2 + j] & np.uint8(0xF)])
        for j in range(16):
            y[b, 16 + j] = d * np.float32(values[blocks[b, 2 + j] >> np.uint8(4)])
    return y


def quantize(x, importance=None):
    """Pack into IQ4_NL blocks.

        minimise sum_j w_j (y_j - x_j)^2

    x:          float32 [n, 32], finite
    -> blocks:  uint8 [n, 18]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block.
    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_iq4_nl, as files are made; quantize_row_iq4_nl_ref only takes the first trial.
    """
    x = frozen(x)
    weights = squares(x) if importance is None else error_weights(x, columns(importance, x), BLOCK, 1, BLOCK // 2)
    d = nonlinear_search(x, weights)
    return np.concatenate([half_bytes(d), split_nibbles(nonlinear_codes(x, d))], axis=1)


IQ4_NL = BlockType("iq4_nl", 20, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
