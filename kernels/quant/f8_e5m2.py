"""F8_E5M2: 8-bit floats to 57344, the upper byte of a float16.

byte 0  bits 0 .. 1 the mantissa, 2 .. 6 the exponent (bias 15), 7 the sign; 0x7c and 0xfc are infinite
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen, half_of


def dequantize(codes, scale=1.0, out=None):
    """Widen F8_E5M2, and multiply by the tensor's scale.

        y = scale x

    codes: uint8 [n]
    scale: a number; 1 where the file has none
    out:   float32 [n], or None
    -> y:  float32 [n], the product rounded to float32

    Error: none but that rounding.
    Source: Micikevicius et al. 2022, FP8 formats for deep learning, table 1; ComfyUI, TensorCoreFP8Layout.
    """
    y = np.empty(codes.shape, np.float32) if out is None else out
    return _dequantize(frozen(codes), np.float32(scale), y)


@kernel
def _dequantize(codes, scale, y):
    for i in numba.prange(codes.size):
        y[i] = half_of(np.uint32(codes[i]) << np.uint32(8)) * scale
    return y
