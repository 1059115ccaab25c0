"""Groups of weights side by side.

A quantizer's sums keep the order of ggml's C code, one element after the other, so that a group alone cannot use
vector instructions. But groups are many: in a tile, element j of 64 groups stands in row j.
"""

import numpy as np

from refsd.kernels._jit import kernel

LANES = 64


@kernel(parallel=False)
def tiles(x):
    """How many tiles hold the groups of x. float32 [m, size] -> int"""
    return (x.shape[0] + LANES - 1) // LANES


@kernel(parallel=False, inline=False)
def side_by_side(x, tile):
    """The groups of a tile, a column each; past the last group, zeros. float32 [m, size] -> [size, 64]"""
    columns = np.zeros((x.shape[1], LANES), np.float32)
    for g in range(min(LANES, x.shape[0] - tile * LANES)):
        for j in range(x.shape[1]):
            columns[j, g] = x[tile * LANES + g, j]
    return columns
