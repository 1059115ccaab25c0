"""NVFP4: 64 weights as 4-bit floats (E2M1), in 4 groups of 16, each group with an 8-bit float as scale.

byte 0 ..  3  d   UE4M3, a scale a group: 4 bits of exponent (bias 7), 3 of mantissa, the top bit unused
byte 4 .. 35  qs  8 bytes a group: low nibbles weights 0 .. 7, high nibbles weights 8 .. 15
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, frozen, room
from refsd.kernels.quant.mxfp4 import VALUES

BLOCK = 64
BYTES = 36
assert BYTES == BLOCK // 16 + BLOCK // 2


def _half_scales() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    scale = np.where(exponent == 0, np.ldexp(mantissa * 1.0, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    scale[0x7F] = 0
    return frozen((scale / 2).astype(np.float32))


# Half the scale, for VALUES are doubled. The code 0x7f, NaN in the standard, is 0 to ggml; 0xff is 480.
HALF_SCALES = _half_scales()


def dequantize(blocks, out=None):
    """Expand NVFP4 blocks.

        y = (d / 2) VALUES[q]

    blocks: uint8 [n, 36]
    out:    float32 [n, 64], or None
    -> y:   float32 [n, 64]

    The tensor's own float32 scale, which NVIDIA's format has besides, is another tensor's matter.
    Error: none; bit-exact with ggml.
    Source: ggml-quants.c, dequantize_row_nvfp4; ggml-impl.h, ggml_ue4m3_to_fp32.
    """
    return _dequantize(frozen(blocks), VALUES, HALF_SCALES, room(blocks, BLOCK, out))


@kernel(slp=True)
def _dequantize(blocks, values, scales, y):
    for b in numba.prange(blocks.shape[0]):
        for g in range(4):
            d = scales[blocks[b, g]]
            for j in range(8):
                y[b, 16 * g + j] = d * np.float32(values[blocks[b, 4 + 8 * g + j] & np.uint8(0xF)])
                y[b, 16 * g + 8 + j] = d * np.float32(values[blocks[b, 4 + 8 * g + j] >> np.uint8(4)])
    return y


NVFP4 = BlockType("nvfp4", 40, BLOCK, BYTES, dequantize)
