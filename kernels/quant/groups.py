"""Transpose groups of weights into tiles, so that 64 groups are processed in parallel.

A quantizer's sums keep the order of ggml's C code, one element after the other, so a single group cannot use vector
instructions. In a tile, row j holds element j of 64 groups.
"""

import numpy as np

from refsd.kernels._jit import kernel

LANES = 64


@kernel(parallel=False)
def tiles(x):
    """Count the tiles that hold the groups of x. float32 [m, size] -> int"""
    return (x.shape[0] + LANES - 1) // LANES


@kernel(parallel=False, inline=False)
def side_by_side(x, tile):
    """Return the groups of a tile as columns, with zeros after the last group. float32 [m, size] -> [size, 64]"""
    columns = np.zeros((x.shape[1], LANES), np.float32)
    for g in range(min(LANES, x.shape[0] - tile * LANES)):
        for j in range(x.shape[1]):
            columns[j, g] = x[tile * LANES + g, j]
    return columns
