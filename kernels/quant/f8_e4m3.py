"""F8_E4M3 (E4M3FN): 8-bit floats to 448, without infinity.

byte 0  bits 0 .. 2 the mantissa, 3 .. 6 the exponent (bias 7), 7 the sign; 0x7f and 0xff are NaN
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen


def dequantize(codes, scale=1.0, out=None):
    """Widen F8_E4M3, and multiply by the tensor's scale.

        y = scale x

    codes: uint8 [n]
    scale: a number; 1 where the file has none
    out:   float32 [n], or None
    -> y:  float32 [n], the product rounded to float32

    Error: none but that rounding. Every value is a float16 too, and with scale 1 this is what stable-diffusion.cpp
    loads (F16).
    Source: Micikevicius et al. 2022, FP8 formats for deep learning, table 1; ComfyUI, TensorCoreFP8Layout.
    """
    y = np.empty(codes.shape, np.float32) if out is None else out
    return _dequantize(frozen(codes), np.float32(scale), y)


@kernel
def _dequantize(codes, scale, y):
    for i in numba.prange(codes.size):
        code = np.int32(codes[i])
        magnitude = code & np.int32(0x7F)
        # Moved to float32's place, exponent and mantissa read as 2^-120 times the number.
        number = np.int32(magnitude << np.int32(20)).view(np.float32) * np.float32(2.0**120)
        bits = np.float32(number).view(np.int32) | (code & np.int32(0x80)) << np.int32(24)
        bits = np.int32(0x7FC00000) if magnitude == np.int32(0x7F) else bits
        y[i] = np.int32(bits).view(np.float32) * scale
    return y
