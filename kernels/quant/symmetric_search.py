"""Fit one scale, of either sign, to each group of weights: the search behind Q3_K, Q6_K, Q4_0 and Q5_0."""

from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.groups import LANES, side_by_side, tiles
from refsd.kernels.quant.rounding import clipped

_NOTHING = np.float32(1e-15)


class SymmetricFit(NamedTuple):
    """A fit x = scale (q - top). scale: float32 [m]; codes q: uint8 [m, size], 0 .. 2 top - 1"""

    scale: np.ndarray
    codes: np.ndarray


def symmetric_search(x, weights, top):
    """Fit a scale to each group by trying 19 of them.

        minimise sum_j w_j (scale (q_j - top) - x_j)^2,    q_j in 0 .. 2 top - 1

    x, weights: float32 [m, size]
    -> SymmetricFit

    The x of largest magnitude is taken to about -top. For fixed codes l = q - top the best scale is
    sum w x l / sum w l^2, and the error falls as (sum w x l)^2 / sum w l^2 grows.
    A group whose largest magnitude is below 1e-15 has scale 0 and codes 0.
    All in float32, in ggml's order: bit-exact.
    Source: ggml-quants.c, make_qx_quants.
    """
    return SymmetricFit(*_search(x, weights, np.float32(top), False))


def symmetric_descent(x, top):
    """Fit with weights x^2 from a single scale: in five passes, each code in turn takes its best value.

    x: float32 [m, size]
    -> SymmetricFit

    Source: ggml-quants.c, make_q3_quants.
    """
    return SymmetricFit(*_search(x, squares(x), np.float32(top), True))


@kernel
def squares(x):
    """Compute x^2, the error weight without importance. float32 [m, size] -> [m, size]"""
    y = np.empty(x.shape, np.float32)
    for g in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            y[g, j] = x[g, j] * x[g, j]
    return y


@kernel
def _search(x, weights, top, descend):
    scale = np.empty(x.shape[0], np.float32)
    codes = np.empty(x.shape, np.uint8)
    for tile in numba.prange(tiles(x)):
        columns, column_weights = side_by_side(x, tile), side_by_side(weights, tile)
        found = _descend_tile(columns, column_weights, top) if descend else _try_tile(columns, column_weights, top)
        for g in range(tile * LANES, min(x.shape[0], tile * LANES + LANES)):
            scale[g] = found[x.shape[1], g % LANES]
            for j in range(x.shape[1]):
                codes[g, j] = np.uint8(found[j, g % LANES])
    return scale, codes


@kernel(parallel=False, inline=False)
def _try_tile(x, weights, top):
    """-> [size + 1, 64]: the codes of each group, and its scale in the last row."""
    found, state = np.empty((x.shape[0] + 1, LANES), np.float32), np.empty((7, LANES), np.float32)
    largest, inverse, scale, score = state[0], state[1], state[2], state[3]
    trial, sum_xl, sum_l2 = state[4], state[5], state[6]
    _largest(x, largest)
    for g in range(LANES):
        inverse[g] = -top / largest[g]
    _sums(x, weights, top, inverse, sum_xl, sum_l2)
    for g in range(LANES):
        scale[g] = sum_xl[g] / sum_l2[g] if sum_l2[g] != 0 else np.float32(0)
        score[g] = scale[g] * sum_xl[g]
    for step in range(-9, 10):
        if step != 0:
            for g in range(LANES):
                trial[g] = -(top + np.float32(0.1) * np.float32(step)) / largest[g]
            _sums(x, weights, top, trial, sum_xl, sum_l2)
            for g in range(LANES):
                better = sum_l2[g] > 0 and sum_xl[g] * sum_xl[g] > score[g] * sum_l2[g]
                inverse[g] = trial[g] if better else inverse[g]
                scale[g] = sum_xl[g] / sum_l2[g] if better else scale[g]
                score[g] = scale[g] * sum_xl[g] if better else score[g]
    for j in range(x.shape[0]):
        for g in range(LANES):
            found[j, g] = clipped(inverse[g] * x[j, g], -top, top - np.float32(1))
    for g in range(LANES):
        found[x.shape[0], g] = scale[g]
    _finish(found, largest, top)
    return found


@kernel(parallel=False, inline=False)
def _descend_tile(x, weights, top):
    """-> [size + 1, 64]: the codes of each group, and its scale in the last row."""
    found, state = np.empty((x.shape[0] + 1, LANES), np.float32), np.empty((4, LANES), np.float32)
    largest, inverse, sum_xl, sum_l2 = state[0], state[1], state[2], state[3]
    _largest(x, largest)
    for g in range(LANES):
        inverse[g] = -top / largest[g]
    _sums(x, weights, top, inverse, sum_xl, sum_l2)
    for j in range(x.shape[0]):
        for g in range(LANES):
            found[j, g] = clipped(inverse[g] * x[j, g], -top, top - np.float32(1))
    for _ in range(5):
        _reconsider(x, weights, top, found, sum_xl, sum_l2)
    for g in range(LANES):
        found[x.shape[0], g] = sum_xl[g] / sum_l2[g] if sum_l2[g] > 0 else np.float32(0)
    _finish(found, largest, top)
    return found


@kernel(parallel=False)
def _largest(x, largest):
    """Find the first x of largest magnitude in each group."""
    for g in range(LANES):
        largest[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            largest[g] = x[j, g] if abs(x[j, g]) > abs(largest[g]) else largest[g]


@kernel(parallel=False)
def _sums(x, weights, top, inverse, sum_xl, sum_l2):
    """Compute sum_j w_j x_j l_j and sum_j w_j l_j^2 for the codes of a scale."""
    for g in range(LANES):
        sum_xl[g] = sum_l2[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            code = clipped(inverse[g] * x[j, g], -top, top - np.float32(1))
            sum_xl[g] += weights[j, g] * x[j, g] * code
            sum_l2[g] += weights[j, g] * code * code


@kernel(parallel=False)
def _reconsider(x, weights, top, codes, sum_xl, sum_l2):
    """Give each code in turn its best value with the others fixed."""
    for j in range(x.shape[0]):
        for g in range(LANES):
            w, old = weights[j, g], codes[j, g]
            rest_xl, rest_l2 = sum_xl[g] - w * x[j, g] * old, sum_l2[g] - w * old * old
            new = clipped(x[j, g] * rest_l2 / rest_xl, -top, top - np.float32(1))
            new_xl, new_l2 = rest_xl + w * x[j, g] * new, rest_l2 + w * new * new
            gains = new_xl * new_xl * sum_l2[g] > sum_xl[g] * sum_xl[g] * new_l2
            accepted = rest_xl > 0 and new != old and new_l2 > 0 and gains
            codes[j, g] = new if accepted else old
            sum_xl[g] = new_xl if accepted else sum_xl[g]
            sum_l2[g] = new_l2 if accepted else sum_l2[g]


@kernel(parallel=False)
def _finish(found, largest, top):
    """Convert codes to q = l + top; a group whose magnitudes are negligible gets all 0."""
    last = found.shape[0] - 1
    for j in range(last + 1):
        for g in range(LANES):
            value = found[j, g] if j == last else found[j, g] + top
            found[j, g] = np.float32(0) if abs(largest[g]) < _NOTHING else value


def restate_symmetric(x, scale, fit, top):
    """Recompute each group's codes for its scale as stored.

        q = round(x / scale) + top, clipped to 0 .. 2 top - 1; if scale is 0, the codes of the search

    x:     float32 [m, size]
    scale: float32 [m] in any shape
    -> q:  uint8 [m, size]
    """
    return _restate(x, scale.reshape(-1), fit.codes, np.float32(top))


@kernel
def _restate(x, scale, searched, top):
    codes = np.empty(x.shape, np.uint8)
    for g in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            restated = np.uint8(clipped(x[g, j] / scale[g], -top, top - np.float32(1)) + top)
            codes[g, j] = restated if scale[g] != 0 else searched[g, j]
    return codes
