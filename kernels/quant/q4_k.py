"""Q4_K: 256 weights of 4 bits, in 8 groups of 32, each group with a 6-bit scale and a 6-bit minimum.

byte   0 ..   1  d       float16, scale of the scales
byte   2 ..   3  dmin    float16, scale of the minimums
byte   4 ..  15  scales  (A .. H scales, a .. h minimums of groups 0 .. 7;
                          a letter a bit, high bit left)
                         4 .. 7    EEAAAAAA FFBBBBBB GGCCCCCC HHDDDDDD
                         8 .. 11   eeaaaaaa ffbbbbbb ggcccccc hhdddddd
                         12 .. 15  eeeeEEEE ffffFFFF ggggGGGG hhhhHHHH
byte  16 .. 143  qs      32 bytes for two groups: low nibbles the first, high nibbles the second
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.affine_search import Steps
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.group_scales import affine_blocks, magnitudes, weighted_affine_blocks
from refsd.kernels.quant.packing import nibble_pairs, six_bit_pairs

BLOCK = 256
BYTES = 144
assert BYTES == 2 + 2 + 12 + BLOCK // 2


@kernel(parallel=False)
def scale_and_min(block, group):
    """The 6-bit scale and minimum of a group, from a Q4_K or Q5_K block. -> float32, float32"""
    if group < 4:
        scale, minimum = block[4 + group] & 0x3F, block[8 + group] & 0x3F
    else:
        nibbles = block[8 + group]
        scale = (nibbles & 0xF) | (block[group] >> 6 << 4)
        minimum = (nibbles >> 4) | (block[4 + group] >> 6 << 4)
    return np.float32(scale), np.float32(minimum)


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q4_K blocks.

        y = (d scale) q - (dmin minimum)

    blocks: uint8 [n, 144]
    -> y:   float32 [n, 256]

    Both products and the difference are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q4_K and get_scale_min_k4.
    """
    for b in numba.prange(blocks.shape[0]):
        d, dmin = half(blocks, b, 0), half(blocks, b, 2)
        for pair in range(4):
            scale0, minimum0 = scale_and_min(blocks[b], 2 * pair)
            scale1, minimum1 = scale_and_min(blocks[b], 2 * pair + 1)
            d0, m0 = d * scale0, dmin * minimum0
            d1, m1 = d * scale1, dmin * minimum1
            for j in range(32):
                byte = blocks[b, 16 + 32 * pair + j]
                y[b, 64 * pair + j] = d0 * np.float32(byte & 0xF) - m0
                y[b, 64 * pair + 32 + j] = d1 * np.float32(byte >> 4) - m1
    return y


def quantize(x, importance=None):
    """Pack into Q4_K blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale and minimum; then round both to 6 bits, then x anew

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 144]

    w = |x| + rms(x) of the group; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block,
    and the scales of groups are searched for too. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q4_K_ref and quantize_row_q4_K_impl.
    """
    x = frozen(x)
    if importance is None:
        found = affine_blocks(x, magnitudes(x.reshape(-1, 32), True), 15, 63, Steps(-1.0, 0.1, 21))
    else:
        found = weighted_affine_blocks(x, importance, 32, 2, 15, 63)
    packed = six_bit_pairs(found.scales, found.minimums)
    return np.concatenate([half_bytes(found.d), half_bytes(found.dmin), packed, nibble_pairs(found.codes)], axis=1)


Q4_K = BlockType("q4_k", 12, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
