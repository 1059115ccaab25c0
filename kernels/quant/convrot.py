"""ConvRot: scaled int8 with rows rotated in groups, which spreads outliers; ComfyUI's "convrot".

weight        int8 [O, I], of the rotated matrix
weight_scale  float32 [O, 1]
group         256 unless `convrot_groupsize` says otherwise: a power of 4 that divides I

The rotation is the regular Hadamard matrix H = H4 x H4 x .. / sqrt(group), x the Kronecker product,

    H4 = [1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1]

which is symmetric and its own inverse. A matrix product is unchanged if the activations are rotated too, because
(W H)(H x) = W x: engines that multiply in int8 do so.
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen

GROUP = 256


@kernel(parallel=False)
def _turn(row, first, group):
    """Multiply one group of a row by sqrt(group) H in place, one level of H4 at a time, as in an FFT."""
    step = 1
    while step < group:
        for start in range(first, first + group, 4 * step):
            for at in range(start, start + step):
                a, b, c, d = row[at], row[at + step], row[at + 2 * step], row[at + 3 * step]
                total = a + b + c + d
                row[at] = total - d - d
                row[at + step] = total - c - c
                row[at + 2 * step] = total - b - b
                row[at + 3 * step] = total - a - a
        step *= 4


def dequantize(codes, scale, group=GROUP):
    """Expand a matrix of rotated int8, and rotate it back.

        y = (scale q) H

    codes: int8 [O, I]
    scale: float32 [1], or [O]: one for each row
    -> y:  float32 [O, I]

    The rotation of the integer codes is exact; only the product with the scale is rounded to float32.
    Source: comfy_kitchen, dequantize_int8_convrot_weight.
    """
    row_scale = np.broadcast_to(scale, codes.shape[:1]).astype(np.float32) / np.float32(np.sqrt(group))
    return _dequantize(frozen(codes), row_scale, group)


@kernel
def _dequantize(codes, scale, group):
    y = np.empty(codes.shape, np.float32)
    for o in numba.prange(codes.shape[0]):
        row = np.empty(codes.shape[1], np.int32)
        for i in range(codes.shape[1]):
            row[i] = codes[o, i]
        for first in range(0, codes.shape[1], group):
            _turn(row, first, group)
        for i in range(codes.shape[1]):
            y[o, i] = scale[o] * np.float32(row[i])
    return y


def rotate(x, group=GROUP):
    """Rotate weights or activations in groups.

        y = x H

    x:    float32 or float64 [M, I]
    -> y: the same; sums in the dtype of x, divided by sqrt(group) at the end

    Source: comfy_kitchen, _rotate_activation and _rotate_weight.
    """
    return _rotate(frozen(x), group, x.dtype.type(np.sqrt(group)))


@kernel
def _rotate(x, group, root):
    y = np.empty(x.shape, x.dtype)
    for m in numba.prange(x.shape[0]):
        for i in range(x.shape[1]):
            y[m, i] = x[m, i]
        for first in range(0, x.shape[1], group):
            _turn(y[m], first, group)
        for i in range(x.shape[1]):
            y[m, i] /= root
    return y
