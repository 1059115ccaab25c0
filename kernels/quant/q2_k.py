"""Q2_K: 256 weights of 2 bits, in 16 groups of 16, each group with a 4-bit scale and a 4-bit minimum.

byte  0 .. 15  scales  low nibble the scale of a group, high nibble its minimum
byte 16 .. 79  qs      32 bytes for 128 weights: bits 2k, 2k+1 of byte j are weight 32 k + j
byte 80 .. 81  d       float16, scale of the scales
byte 82 .. 83  dmin    float16, scale of the minimums
"""

import numba
import numpy as np

from refsd.kernels.quant.affine_search import Steps
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.group_scales import affine_blocks, magnitudes, weighted_affine_blocks
from refsd.kernels.quant.packing import two_bit_planes

BLOCK = 256
BYTES = 84
assert BYTES == 16 + BLOCK // 4 + 2 + 2


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q2_K blocks.

        y = (d scale) q - (dmin minimum)

    blocks: uint8 [n, 84]
    -> y:   float32 [n, 256]

    Both products and the difference are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q2_K.
    """
    for b in numba.prange(blocks.shape[0]):
        d, dmin = half(blocks, b, 80), half(blocks, b, 82)
        for h in range(2):
            for k in range(4):
                codes0, codes1 = blocks[b, 8 * h + 2 * k], blocks[b, 8 * h + 2 * k + 1]
                scale0, scale1 = d * np.float32(codes0 & 0xF), d * np.float32(codes1 & 0xF)
                minimum0, minimum1 = dmin * np.float32(codes0 >> 4), dmin * np.float32(codes1 >> 4)
                for j in range(32):
                    q = blocks[b, 16 + 32 * h + j] >> np.uint8(2 * k) & np.uint8(0x3)
                    scale, minimum = (scale0, minimum0) if j < 16 else (scale1, minimum1)
                    y[b, 128 * h + 32 * k + j] = scale * np.float32(q) - minimum
    return y


def quantize(x, importance=None):
    """Pack into Q2_K blocks.

        minimise sum_j |x_j| |y_j - x_j| over a group's scale and minimum; then round both to 4 bits, then x anew

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 84]

    With importance: sum_j w_j (y_j - x_j)^2 with w = importance sqrt(mean(x^2) + x^2), the mean over the block, and
    the scales of groups are searched for too. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q2_K_ref and quantize_row_q2_K_impl.
    """
    x = frozen(x)
    if importance is None:
        weights = magnitudes(x.reshape(-1, 16), False)
        found = affine_blocks(x, weights, 3, 15, Steps(-0.5, 0.1, 16), absolute=True)
    else:
        found = weighted_affine_blocks(x, importance, 16, 1, 3, 15)
    scales = found.scales | found.minimums << 4
    return np.concatenate(
        [scales, two_bit_planes(found.codes), half_bytes(found.d), half_bytes(found.dmin)], axis=1
    )


Q2_K = BlockType("q2_k", 10, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
