"""Scaled int8, ComfyUI's "int8_tensorwise": a matrix of int8 under one scale, or one for each row.

weight        int8 [O, I], -127 .. 127
weight_scale  float32 [], [1], or [O, 1]
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen


def dequantize(codes, scale):
    """Expand a matrix of scaled int8.

        y = scale q

    codes: int8 [O, I]
    scale: float32 [1], or [O]: one for each row
    -> y:  float32 [O, I], the product rounded to float32

    Error: none but that rounding; bit-exact with comfy-kitchen.
    Source: comfy_kitchen, TensorWiseINT8Layout and dequantize_int8_simple.
    """
    return _dequantize(frozen(codes), np.broadcast_to(scale, codes.shape[:1]).astype(np.float32))


@kernel
def _dequantize(codes, scale):
    y = np.empty(codes.shape, np.float32)
    for o in numba.prange(codes.shape[0]):
        for i in range(codes.shape[1]):
            y[o, i] = scale[o] * np.float32(codes[o, i])
    return y


def quantize(x):
    """Pack the rows of a matrix, or of activations, as comfy-kitchen does.

        scale = max(max |x| / 127, 1e-30)        q = x / scale, rounded half to even

    x:        float32 [M, I], finite
    -> codes: int8 [M, I]
    -> scale: float32 [M]

    Bit-exact with comfy-kitchen.
    Source: comfy_kitchen, quantize_int8_rowwise.
    """
    largest = np.abs(x).max(axis=1).astype(np.float32)
    scale = np.maximum(largest / np.float32(127), np.float32(1e-30))
    return np.rint(x / scale[:, None]).astype(np.int8), scale
