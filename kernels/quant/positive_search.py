"""Fit a scale to each group of non-negative numbers: the search for the scales of scales."""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.groups import LANES, side_by_side, tiles
from refsd.kernels.quant.rounding import nearest

_NOTHING = np.float32(1e-15)


def positive_search(x, weights, top):
    """Fit a scale to each group of numbers >= 0.

        minimise sum_j w_j (scale q_j - x_j)^2,    q_j in 0 .. top

    x, weights: float32 [m, size]
    top:        the largest code
    -> scale:   float32 [m]
       codes:   uint8 [m, size]

    Nine scales are tried. Then, in five passes, each code takes its best value with the others fixed, if that
    raises (sum w x q)^2 / sum w q^2. A group whose largest x is below 1e-15 has scale and codes 0. A negative code,
    from a negative x, is stored modulo 256, and its value from then on is the stored one.
    All arithmetic is in float32, in ggml's order: bit-exact.
    Source: ggml-quants.c, make_qp_quants.
    """
    return _search(x, weights, np.float32(top))


@kernel
def _search(x, weights, top):
    scale = np.empty(x.shape[0], np.float32)
    codes = np.empty(x.shape, np.uint8)
    for tile in numba.prange(tiles(x)):
        columns, column_weights = side_by_side(x, tile), side_by_side(weights, tile)
        found = _search_tile(columns, column_weights, top)
        for g in range(tile * LANES, min(x.shape[0], tile * LANES + LANES)):
            scale[g] = found[x.shape[1], g % LANES]
            for j in range(x.shape[1]):
                codes[g, j] = np.uint8(found[j, g % LANES])
    return scale, codes


@kernel(parallel=False, inline=False)
def _search_tile(x, weights, top):
    """Search one tile. -> [size + 1, 64]: the codes of each group, and its scale in the last row"""
    found, state = np.empty((x.shape[0] + 1, LANES), np.float32), np.empty((7, LANES), np.float32)
    largest, inverse, least, sum_qx, sum_q2 = state[0], state[1], state[2], state[3], state[4]
    trial, error = state[5], state[6]
    _largest(x, largest)
    for g in range(LANES):
        inverse[g] = top / largest[g]
        least[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            q = _modulo_256(np.float32(nearest(inverse[g] * x[j, g])))
            difference = x[j, g] - np.float32(1) / inverse[g] * q
            least[g] += weights[j, g] * difference * difference
    for step in range(-4, 5):
        if step != 0:
            for g in range(LANES):
                trial[g] = (np.float32(0.1) * np.float32(step) + top) / largest[g]
            _error(x, weights, top, trial, error)
            for g in range(LANES):
                better = error[g] < least[g]
                least[g] = error[g] if better else least[g]
                inverse[g] = trial[g] if better else inverse[g]
    _round(x, weights, top, inverse, found, sum_qx, sum_q2)
    for _ in range(5):
        _reconsider(x, weights, top, found, sum_qx, sum_q2)
    for g in range(LANES):
        scale = sum_qx[g] / sum_q2[g] if sum_q2[g] > 0 else np.float32(0)
        found[x.shape[0], g] = scale
        if largest[g] < _NOTHING:
            for j in range(x.shape[0] + 1):
                found[j, g] = np.float32(0)
    return found


@kernel(parallel=False)
def _modulo_256(q):
    """Reduce a code modulo 256, as a byte stores it."""
    return q + np.float32(256) if q < 0 else q


@kernel(parallel=False)
def _code(scaled, top):
    return np.float32(min(nearest(scaled), np.int32(top)))


@kernel(parallel=False)
def _largest(x, largest):
    for g in range(LANES):
        largest[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            largest[g] = largest[g] if largest[g] > x[j, g] else x[j, g]


@kernel(parallel=False)
def _error(x, weights, top, inverse, error):
    """Compute sum_j w_j (x_j - q_j / inverse)^2."""
    for g in range(LANES):
        error[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            difference = x[j, g] - np.float32(1) / inverse[g] * _code(inverse[g] * x[j, g], top)
            error[g] += weights[j, g] * difference * difference


@kernel(parallel=False)
def _round(x, weights, top, inverse, codes, sum_qx, sum_q2):
    """Compute the codes of a scale, and the sums that give the best scale for these codes."""
    for g in range(LANES):
        sum_qx[g] = sum_q2[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            q = _code(inverse[g] * x[j, g], top)
            codes[j, g] = _modulo_256(q)
            sum_qx[g] += weights[j, g] * x[j, g] * q
            sum_q2[g] += weights[j, g] * q * q


@kernel(parallel=False)
def _reconsider(x, weights, top, codes, sum_qx, sum_q2):
    """Give each code in turn its best value with the others fixed."""
    for j in range(x.shape[0]):
        for g in range(LANES):
            w, q = weights[j, g], codes[j, g]
            rest_qx, rest_q2 = sum_qx[g] - w * x[j, g] * q, sum_q2[g] - w * q * q
            new = _code(x[j, g] * rest_q2 / rest_qx, top)
            new_qx, new_q2 = rest_qx + w * x[j, g] * new, rest_q2 + w * new * new
            gains = new_qx * new_qx * sum_q2[g] > sum_qx[g] * sum_qx[g] * new_q2
            accepted = rest_qx > 0 and rest_q2 > 0 and new != q and gains
            codes[j, g] = _modulo_256(new) if accepted else q
            sum_qx[g] = new_qx if accepted else sum_qx[g]
            sum_q2[g] = new_q2 if accepted else sum_q2[g]
