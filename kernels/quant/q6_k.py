"""Q6_K: 256 weights of 6 bits, in 16 groups of 16, each group with an 8-bit scale.

byte   0 .. 127  ql      low 4 bits; 64 bytes for 128 weights: low nibbles weights 0 .. 63, high 64 .. 127
byte 128 .. 191  qh      high 2 bits; 32 bytes for 128 weights: bits 2k, 2k+1 of byte j are weight 32 k + j
byte 192 .. 207  scales  int8
byte 208 .. 209  d       float16, scale of the scales
"""

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, read_back
from refsd.kernels.quant.group_scales import signed_scale
from refsd.kernels.quant.importance import columns, every_row
from refsd.kernels.quant.packing import two_bit_planes
from refsd.kernels.quant.symmetric_search import restate_symmetric, squares, symmetric_search

BLOCK = 256
BYTES = 210
assert BYTES == BLOCK // 2 + BLOCK // 4 + 16 + 2
_NOTHING = np.float32(1e-15)


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q6_K blocks.

        y = (d scale) (q - 32)

    blocks: uint8 [n, 210]
    -> y:   float32 [n, 256]

    Both products are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q6_K.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 208)
        for h in range(2):
            for k in range(4):
                codes = 192 + 8 * h + 2 * k
                scale0 = d * np.float32(np.int8(blocks[b, codes]))
                scale1 = d * np.float32(np.int8(blocks[b, codes + 1]))
                for j in range(32):
                    low = blocks[b, 64 * h + 32 * (k % 2) + j] >> np.uint8(4 * (k // 2)) & np.uint8(0xF)
                    high = blocks[b, 128 + 32 * h + j] >> np.uint8(2 * k) & np.uint8(0x3)
                    q = np.float32(low | high << np.uint8(4)) - np.float32(32)
                    y[b, 128 * h + 32 * k + j] = (scale0 if j < 16 else scale1) * q
    return y


def quantize(x, importance=None):
    """Pack into Q6_K blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale; then round the scales to 8 bits, then x anew

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 210]

    w = x^2; with importance, w = importance. A block with all scales below 1e-15 is 0.
    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q6_K_ref and quantize_row_q6_K_impl.
    """
    x = frozen(x)
    groups = x.reshape(-1, 16)
    weights = squares(groups) if importance is None else every_row(columns(importance, x), x).reshape(-1, 16)
    fit = symmetric_search(groups, weights, 32)
    d, scales = signed_scale(fit.scale.reshape(-1, 16), 128)
    scales = (scales ^ 0x80).view(np.int8)
    codes = restate_symmetric(groups, read_back(d, scales), fit, 32).reshape(-1, 2, 4, 32)
    low = codes[:, :, :2] & 0xF | codes[:, :, 2:] << 4
    high = two_bit_planes(codes >> 4)
    blocks = np.concatenate([low.reshape(-1, 128), high, scales.view(np.uint8), half_bytes(d)], axis=1)
    blocks[~(abs(fit.scale.reshape(-1, 16)) >= _NOTHING).any(axis=1)] = 0
    return blocks


Q6_K = BlockType("q6_k", 14, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
