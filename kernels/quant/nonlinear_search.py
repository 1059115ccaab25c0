"""Fit a scale to each group for codes with unevenly spaced values: the search behind IQ4_NL and IQ4_XS."""

from itertools import pairwise

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.groups import LANES, side_by_side, tiles

# The values of the 16 codes. Source: ggml-common.h, kvalues_iq4nl.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MIDDLES = tuple((a + b) / 2 for a, b in pairwise(LEVELS))
_STEPS = tuple(b - a for a, b in pairwise(LEVELS))
_NOTHING = np.float32(1e-15)


@kernel(parallel=False)
def _nearest_level(x):
    """Find the level nearest to x; of two equally near, the upper; for NaN the last. -> float32"""
    level = np.float32(LEVELS[0])
    for k in range(15):
        level += np.float32(0) if x < np.float32(_MIDDLES[k]) else np.float32(_STEPS[k])
    return level


def nonlinear_search(x, weights):
    """Fit a scale to each group by trying 16 of them.

        minimise sum_j w_j (scale LEVELS[q_j] - x_j)^2

    x, weights: float32 [m, size]
    -> scale:   float32 [m]

    The x of largest magnitude is taken to about 127, then to about -134 .. -120. For fixed levels v the best scale
    is sum w v x / sum w v^2. A group whose largest magnitude is below 1e-15 has scale 0.
    All in float32, in ggml's order: bit-exact.
    Source: ggml-quants.c, quantize_row_iq4_nl_impl.
    """
    return _search(x, weights)


@kernel
def _search(x, weights):
    scale = np.empty(x.shape[0], np.float32)
    for tile in numba.prange(tiles(x)):
        found = _search_tile(side_by_side(x, tile), side_by_side(weights, tile))
        for g in range(tile * LANES, min(x.shape[0], tile * LANES + LANES)):
            scale[g] = found[g % LANES]
    return scale


@kernel(parallel=False, inline=False)
def _search_tile(x, weights):
    state = np.empty((6, LANES), np.float32)
    scale, largest, inverse, score, sum_vx, sum_v2 = state[0], state[1], state[2], state[3], state[4], state[5]
    for g in range(LANES):
        largest[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            largest[g] = x[j, g] if abs(x[j, g]) > abs(largest[g]) else largest[g]
    for g in range(LANES):
        inverse[g] = np.float32(1) / (-largest[g] / np.float32(LEVELS[0]))
    _sums(x, weights, inverse, sum_vx, sum_v2)
    for g in range(LANES):
        scale[g] = sum_vx[g] / sum_v2[g] if sum_v2[g] > 0 else np.float32(0)
        score[g] = scale[g] * sum_vx[g]
    for step in range(-7, 8):
        for g in range(LANES):
            inverse[g] = np.float32(step + LEVELS[0]) / largest[g]
        _sums(x, weights, inverse, sum_vx, sum_v2)
        for g in range(LANES):
            better = sum_v2[g] > 0 and sum_vx[g] * sum_vx[g] > score[g] * sum_v2[g]
            scale[g] = sum_vx[g] / sum_v2[g] if better else scale[g]
            score[g] = scale[g] * sum_vx[g] if better else score[g]
    for g in range(LANES):
        scale[g] = np.float32(0) if abs(largest[g]) < _NOTHING else scale[g]
    return scale


@kernel(parallel=False)
def _sums(x, weights, inverse, sum_vx, sum_v2):
    """Compute sum_j w_j v_j x_j and sum_j w_j v_j^2 for the levels of a scale."""
    for g in range(LANES):
        sum_vx[g] = sum_v2[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            level = _nearest_level(inverse[g] * x[j, g])
            sum_vx[g] += weights[j, g] * level * x[j, g]
            sum_v2[g] += weights[j, g] * level * level


@kernel
def nonlinear_codes(x, scale):
    """Find the codes of the levels nearest to x / scale. float32 [m, size], [m] -> uint8 [m, size]

    x / scale is x times the float32 reciprocal; where scale is 0, the code is that of 0.
    """
    codes = np.empty(x.shape, np.uint8)
    for g in numba.prange(x.shape[0]):
        inverse = np.float32(1) / scale[g] if scale[g] != 0 else np.float32(0)
        for j in range(x.shape[1]):
            code = np.uint8(0)
            for k in range(15):
                code += np.uint8(0) if inverse * x[g, j] < np.float32(_MIDDLES[k]) else np.uint8(1)
            codes[g, j] = code
    return codes
