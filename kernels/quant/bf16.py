"""BF16: the upper half of a float32, 16 bits an element.

byte 0 .. 1  little-endian: bits 0 .. 6 the mantissa, 7 .. 14 the exponent (bias 127), 15 the sign
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen


def dequantize(codes, out=None):
    """Widen BF16.

    codes: uint16 [n]
    out:   float32 [n], or None
    -> y:  float32 [n]

    Error: none; NaN keeps its bits.
    Source: ggml-impl.h, ggml_compute_bf16_to_fp32.
    """
    return _dequantize(frozen(codes), np.empty(codes.shape, np.float32) if out is None else out)


@kernel
def _dequantize(codes, y):
    for i in numba.prange(codes.size):
        y[i] = np.uint32(np.uint32(codes[i]) << np.uint32(16)).view(np.float32)
    return y
