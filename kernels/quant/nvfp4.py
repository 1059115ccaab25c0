"""NVFP4: 64 weights as 4-bit floats (E2M1), in 4 groups of 16, each group with an 8-bit float as scale.

byte 0 ..  3  d   UE4M3, a scale a group: 4 bits of exponent (bias 7), 3 of mantissa, the top bit unused
byte 4 .. 35  qs  8 bytes a group: low nibbles weights 0 .. 7, high nibbles weights 8 .. 15
"""

import numba
import numpy as np

from refsd.kernels.quant.block_type import BlockType, expander, frozen
from refsd.kernels.quant.mxfp4 import VALUES, nearest_values

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


@expander(BLOCK, VALUES, HALF_SCALES, slp=True, loops=False)
def dequantize(blocks, values, scales, y):
    """Expand NVFP4 blocks.

        y = (d / 2) VALUES[q]

    blocks: uint8 [n, 36]
    -> y:   float32 [n, 64]

    The tensor's own float32 scale, which NVIDIA's format has besides, is another tensor's matter.
    Error: none; bit-exact with ggml.
    Source: ggml-quants.c, dequantize_row_nvfp4; ggml-impl.h, ggml_ue4m3_to_fp32.
    """
    for b in numba.prange(blocks.shape[0]):
        for g in range(4):
            d = scales[blocks[b, g]]
            for j in range(8):
                y[b, 16 * g + j] = d * np.float32(values[blocks[b, 4 + 8 * g + j] & np.uint8(0xF)])
                y[b, 16 * g + 8 + j] = d * np.float32(values[blocks[b, 4 + 8 * g + j] >> np.uint8(4)])
    return y


def quantize(x):
    """Pack into NVFP4 blocks.

        d = max |x| / 6 in UE4M3        q = argmin |(d / 2) VALUES[q] - x|, the first of equals

    x:         float32 [n, 64], finite
    -> blocks: uint8 [n, 36]

    d is rounded half up; below 2^-10 it is 0, and from 248 on always 448, as ggml has it. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_nvfp4_ref; ggml-impl.h, ggml_fp32_to_ue4m3.
    """
    groups = frozen(x).reshape(-1, 16)
    d = _ue4m3(abs(groups).max(axis=1) / np.float32(6))
    codes = nearest_values(groups, HALF_SCALES[d])
    return np.concatenate([d.reshape(-1, 4), (codes[:, :8] | codes[:, 8:] << 4).reshape(-1, 32)], axis=1)


@np.errstate(invalid="ignore")
def _ue4m3(scale: np.ndarray) -> np.ndarray:
    """A scale >= 0 as an unsigned 8-bit float, rounded half up. float32 [m] -> uint8 [m]"""
    scale = np.minimum(scale, np.float32(448))
    code = (scale.view(np.int32) + (1 << 19) >> 20) - (120 << 3)
    code = np.where(code >= 0x78, 0x7E, code)
    subnormal = np.minimum((scale * np.float32(512) + np.float32(0.5)).astype(np.int32), 7)
    return np.where(scale < np.float32(2.0**-6), subnormal, code).astype(np.uint8)


NVFP4 = BlockType("nvfp4", 40, BLOCK, BYTES, dequantize, quantize)
