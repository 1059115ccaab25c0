"""Fit a scale and a minimum to each group of weights: the search behind Q2_K, Q4_K, Q5_K, Q4_1 and Q5_1."""

from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.groups import LANES, side_by_side, tiles
from refsd.kernels.quant.rounding import clipped


class AffineFit(NamedTuple):
    """A fit x = scale q + low. scale, low: float32 [m], low <= 0; codes q: uint8 [m, size]"""

    scale: np.ndarray
    low: np.ndarray
    codes: np.ndarray


class Steps(NamedTuple):
    """The trial scales: they spread a group over top + first, top + first + step, ... codes."""

    first: float
    step: float
    count: int


WEIGHTED_STEPS = Steps(-0.9, 0.05, 37)


def affine_search(x, weights, top, steps, absolute=False):
    """Fit a scale and a minimum to each group.

        minimise sum_j w_j (scale q_j + low - x_j)^2,    q_j in 0 .. top,  low <= 0

    x, weights: float32 [m, size]
    top:        the largest code
    steps:      the trial scales
    absolute:   minimise sum_j w_j |scale q_j + low - x_j| instead
    -> AffineFit

    Each trial rounds all x to codes with its scale; for fixed codes the best scale and low solve two linear
    equations (weighted least squares). The low of the best trial so far is the origin of the following trials.
    All arithmetic is in float32, in ggml's order: bit-exact. A group of equal x <= 0 has scale 0.
    Source: ggml-quants.c, make_qkx2_quants and make_qkx3_quants.
    """
    first, step = np.float32(steps.first), np.float32(steps.step)
    return AffineFit(*_search(x, weights, np.float32(top), first, step, steps.count, absolute))


@kernel
def _search(x, weights, top, first, step, count, absolute):
    scale, low = np.empty(x.shape[0], np.float32), np.empty(x.shape[0], np.float32)
    codes = np.empty(x.shape, np.uint8)
    for tile in numba.prange(tiles(x)):
        columns, column_weights = side_by_side(x, tile), side_by_side(weights, tile)
        found = _search_tile(columns, column_weights, top, first, step, count, absolute)
        for g in range(tile * LANES, min(x.shape[0], tile * LANES + LANES)):
            scale[g], low[g], inverse, origin = (
                found[0, g % LANES],
                found[1, g % LANES],
                found[2, g % LANES],
                found[3, g % LANES],
            )
            for j in range(x.shape[1]):
                codes[g, j] = np.uint8(clipped(inverse * (x[g, j] - origin), 0, top))
    return scale, low, codes


@kernel(parallel=False, inline=False)
def _search_tile(x, weights, top, first, step, count, absolute):
    found, tried, sums = (
        np.empty((5, LANES), np.float32),
        np.empty((4, LANES), np.float32),
        np.empty((6, LANES), np.float32),
    )
    scale, low, inverse, origin, least = found[0], found[1], found[2], found[3], found[4]
    trial_scale, trial_low, trial_inverse, error = tried[0], tried[1], tried[2], tried[3]
    high, sum_w, sum_x = sums[0], sums[1], sums[2]
    _extent_and_sums(x, weights, low, high, sum_w, sum_x)
    for g in range(LANES):
        low[g] = np.float32(0) if low[g] > 0 else low[g]
        origin[g] = low[g]
        inverse[g] = top / (high[g] - low[g])
        scale[g] = np.float32(1) / inverse[g]
    _error(x, weights, top, absolute, scale, low, inverse, origin, least)
    for t in range(count):
        for g in range(LANES):
            trial_inverse[g] = (first + step * np.float32(t) + top) / (high[g] - low[g])
        _best_line(x, weights, top, trial_inverse, low, sum_w, sum_x, sums, trial_scale, trial_low)
        _error(x, weights, top, absolute, trial_scale, trial_low, trial_inverse, low, error)
        for g in range(LANES):
            better = error[g] < least[g]
            least[g] = error[g] if better else least[g]
            inverse[g] = trial_inverse[g] if better else inverse[g]
            origin[g] = low[g] if better else origin[g]
            scale[g] = trial_scale[g] if better else scale[g]
            low[g] = trial_low[g] if better else low[g]
    return found


@kernel(parallel=False)
def _extent_and_sums(x, weights, low, high, sum_w, sum_x):
    """Compute each group's smallest and largest x, the sum of weights, and the weighted sum of x."""
    for g in range(LANES):
        low[g] = high[g] = x[0, g]
        sum_w[g] = weights[0, g]
        sum_x[g] = weights[0, g] * x[0, g]
    for j in range(1, x.shape[0]):
        for g in range(LANES):
            low[g] = x[j, g] if x[j, g] < low[g] else low[g]
            high[g] = x[j, g] if x[j, g] > high[g] else high[g]
            sum_w[g] += weights[j, g]
            sum_x[g] += weights[j, g] * x[j, g]


@kernel(parallel=False)
def _best_line(x, weights, top, inverse, origin, sum_w, sum_x, sums, scale, low):
    """Fit the weighted least squares line through (code, x) with low <= 0; NaN if all codes are equal."""
    sum_q, sum_q2, sum_qx = sums[3], sums[4], sums[5]
    for g in range(LANES):
        sum_q[g] = sum_q2[g] = sum_qx[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            q = clipped(inverse[g] * (x[j, g] - origin[g]), 0, top)
            wq = weights[j, g] * q
            sum_q[g] += wq
            sum_q2[g] += wq * q
            sum_qx[g] += wq * x[j, g]
    for g in range(LANES):
        determinant = sum_w[g] * sum_q2[g] - sum_q[g] * sum_q[g]
        determinant = determinant if determinant > 0 else np.float32(np.nan)
        slope = (sum_w[g] * sum_qx[g] - sum_x[g] * sum_q[g]) / determinant
        intercept = (sum_q2[g] * sum_x[g] - sum_q[g] * sum_qx[g]) / determinant
        scale[g] = sum_qx[g] / sum_q2[g] if intercept > 0 else slope
        low[g] = np.float32(0) if intercept > 0 else intercept


@kernel(parallel=False)
def _error(x, weights, top, absolute, scale, low, inverse, origin, error):
    """Compute sum_j w_j (scale q_j + low - x_j)^2, or the absolute error, for the codes of (inverse, origin)."""
    for g in range(LANES):
        error[g] = np.float32(0)
    for j in range(x.shape[0]):
        for g in range(LANES):
            q = clipped(inverse[g] * (x[j, g] - origin[g]), 0, top)
            difference = scale[g] * q + low[g] - x[j, g]
            error[g] += weights[j, g] * (abs(difference) if absolute else difference * difference)


def restate_affine(x, scale, minimum, fit, top):
    """Recompute each group's codes for its scale and minimum as stored.

        q = round((x + minimum) / scale), clipped to 0 .. top; if scale is 0, the codes of the search

    x:              float32 [m, size]
    scale, minimum: float32 [m] in any shape
    -> q:           uint8 [m, size]
    """
    return _restate(x, scale.reshape(-1), minimum.reshape(-1), fit.codes, top)


@kernel
def _restate(x, scale, minimum, searched, top):
    codes = np.empty(x.shape, np.uint8)
    for g in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            restated = np.uint8(clipped((x[g, j] + minimum[g]) / scale[g], 0, top))
            codes[g, j] = restated if scale[g] != 0 else searched[g, j]
    return codes
