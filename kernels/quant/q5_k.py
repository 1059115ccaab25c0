"""Q5_K: 256 weights of 5 bits, in 8 groups of 32, each group with a 6-bit scale and a 6-bit minimum.

byte   0 ..   1  d       float16, scale of the scales
byte   2 ..   3  dmin    float16, scale of the minimums
byte   4 ..  15  scales  as in Q4_K
byte  16 ..  47  qh      bit g of byte j is the fifth bit of weight j of group g
byte  48 .. 175  qs      32 bytes for two groups: low nibbles the first, high nibbles the second
"""

import numba
import numpy as np

from refsd.kernels.quant.affine_search import Steps
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes
from refsd.kernels.quant.group_scales import affine_blocks, magnitudes, weighted_affine_blocks
from refsd.kernels.quant.packing import nibble_pairs, six_bit_pairs
from refsd.kernels.quant.q4_k import scale_and_min

BLOCK = 256
BYTES = 176
assert BYTES == 2 + 2 + 12 + BLOCK // 8 + BLOCK // 2


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q5_K blocks.

        y = (d scale) q - (dmin minimum)

    blocks: uint8 [n, 176]
    -> y:   float32 [n, 256]

    Both products and the difference are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q5_K.
    """
    for b in numba.prange(blocks.shape[0]):
        d, dmin = half(blocks, b, 0), half(blocks, b, 2)
        for pair in range(4):
            scale0, minimum0 = scale_and_min(blocks[b], 2 * pair)
            scale1, minimum1 = scale_and_min(blocks[b], 2 * pair + 1)
            d0, m0 = d * scale0, dmin * minimum0
            d1, m1 = d * scale1, dmin * minimum1
            for j in range(32):
                fifth = blocks[b, 16 + j] >> np.uint8(2 * pair) & np.uint8(0x1)
                q = blocks[b, 48 + 32 * pair + j] & np.uint8(0xF) | fifth << np.uint8(4)
                y[b, 64 * pair + j] = d0 * np.float32(q) - m0
            for j in range(32):
                fifth = blocks[b, 16 + j] >> np.uint8(2 * pair + 1) & np.uint8(0x1)
                q = blocks[b, 48 + 32 * pair + j] >> np.uint8(4) | fifth << np.uint8(4)
                y[b, 64 * pair + 32 + j] = d1 * np.float32(q) - m1
    return y


def quantize(x, importance=None):
    """Pack into Q5_K blocks: as Q4_K, with codes 0 .. 31 and other trial scales.

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 176]

    Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q5_K_ref and quantize_row_q5_K_impl.
    """
    x = frozen(x)
    if importance is None:
        found = affine_blocks(x, magnitudes(x.reshape(-1, 32), True), 31, 63, Steps(-0.5, 0.1, 16))
    else:
        found = weighted_affine_blocks(x, importance, 32, 2, 31, 63)
    fifths = np.packbits(found.codes.reshape(-1, 8, 32) >> 4, axis=1, bitorder="little").reshape(-1, 32)
    parts = half_bytes(found.d), half_bytes(found.dmin), six_bit_pairs(found.scales, found.minimums)
    return np.concatenate([*parts, fifths, nibble_pairs(found.codes & 0xF)], axis=1)


Q5_K = BlockType("q5_k", 13, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
