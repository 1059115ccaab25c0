"""Q3_K: 256 weights of 3 bits, in 16 groups of 16, each group with a 6-bit scale.

byte   0 ..  31  hmask   bit i of byte j is the high bit of weight 32 i + j
byte  32 ..  95  qs      low 2 bits; 32 bytes for 128 weights: bits 2k, 2k+1 of byte j are weight 32 k + j
byte  96 .. 107  scales  (A .. P scales of groups 0 .. 15; a letter a bit, high bit left)
                         96 .. 103   IIIIAAAA JJJJBBBB KKKKCCCC LLLLDDDD MMMMEEEE NNNNFFFF OOOOGGGG PPPPHHHH
                         104 .. 107  MMIIEEAA NNJJFFBB OOKKGGCC PPLLHHDD
byte 108 .. 109  d       float16, scale of the scales
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, Importance, expander, frozen, half, half_bytes, read_back
from refsd.kernels.quant.group_scales import signed_scale
from refsd.kernels.quant.importance import columns, error_weights, row_sums
from refsd.kernels.quant.packing import two_bit_planes
from refsd.kernels.quant.symmetric_search import restate_symmetric, symmetric_descent, symmetric_search

BLOCK = 256
BYTES = 110
assert BYTES == BLOCK // 8 + BLOCK // 4 + 12 + 2


@kernel(parallel=False)
def _scale(block, group):
    low = block[96 + group % 8] >> (4 * (group // 8)) & 0xF
    high = block[104 + group % 4] >> (2 * (group // 4)) & 0x3
    return np.float32(low | high << 4) - np.float32(32)


@expander(BLOCK)
def dequantize(blocks, y):
    """Expand Q3_K blocks.

        y = (d (scale - 32)) (q - 4)

    blocks: uint8 [n, 110]
    -> y:   float32 [n, 256]

    Both products are rounded to float32. Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q3_K.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 108)
        for h in range(2):
            for k in range(4):
                scale0 = d * _scale(blocks[b], 8 * h + 2 * k)
                scale1 = d * _scale(blocks[b], 8 * h + 2 * k + 1)
                for j in range(32):
                    low = blocks[b, 32 + 32 * h + j] >> np.uint8(2 * k) & np.uint8(0x3)
                    high = blocks[b, j] >> np.uint8(4 * h + k) & np.uint8(0x1)
                    q = np.float32(low | high << np.uint8(2)) - np.float32(4)
                    y[b, 128 * h + 32 * k + j] = (scale0 if j < 16 else scale1) * q
    return y


def quantize(x, importance=None):
    """Pack into Q3_K blocks.

        minimise sum_j w_j (y_j - x_j)^2 over a group's scale; then round the scales to 6 bits, then x anew

    x:          float32 [n, 256], finite
    -> blocks:  uint8 [n, 110]

    w = x^2; with importance, w = importance sqrt(2 mean(x^2) + x^2), the mean over the block, and the scales of
    groups are searched for too. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_q3_K_ref and quantize_row_q3_K_impl.
    """
    x = frozen(x)
    groups = x.reshape(-1, 16)
    if importance is None:
        fit = symmetric_descent(groups, 4)
        d, scales = signed_scale(fit.scale.reshape(-1, 16), 32)
    else:
        weights = error_weights(x, columns(importance, x), BLOCK, 2).reshape(-1, 16)
        fit = symmetric_search(groups, weights, 4)
        d, scales = symmetric_search(fit.scale.reshape(-1, 16), row_sums(weights).reshape(-1, 16), 32)
    stored = read_back(d, scales.view(np.int8) - np.int8(32))
    codes = restate_symmetric(groups, stored, fit, 4).reshape(-1, BLOCK)
    hmask = np.packbits(codes.reshape(-1, 8, 32) >> 2, axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([hmask, two_bit_planes(codes & 3), _pack_scales(scales), half_bytes(d)], axis=1)


def _pack_scales(scales):
    low, high = scales & 0xF, (scales >> 4).reshape(-1, 4, 4)
    nibbles = low[:, :8] | low[:, 8:] << 4
    pairs = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    return np.concatenate([nibbles, pairs], axis=1)


Q3_K = BlockType("q3_k", 11, BLOCK, BYTES, dequantize, quantize, importance=Importance.OPTIONAL)
