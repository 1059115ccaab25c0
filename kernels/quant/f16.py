"""F16: IEEE half precision, 16 bits an element.

byte 0 .. 1  little-endian: bits 0 .. 9 the mantissa, 10 .. 14 the exponent (bias 15), 15 the sign
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen, half_of


def dequantize(codes, out=None):
    """Widen F16.

    codes: uint16 [n]
    out:   float32 [n], or None
    -> y:  float32 [n]

    Error: none; infinity and NaN stay what they are.
    Source: IEEE 754-2008, binary16.
    """
    return _dequantize(frozen(codes), np.empty(codes.shape, np.float32) if out is None else out)


@kernel
def _dequantize(codes, y):
    for i in numba.prange(codes.size):
        y[i] = half_of(codes[i])
    return y
