"""Fit one scale for each group of weights whose magnitudes lie on a grid: the search behind IQ2 and IQ3."""

from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.rounding import clipped

AT_ONCE = 16
# Added to a part's row if the part's point is not on the grid.
BESIDE = 1 << 20


class GridRule(NamedTuple):
    """Parameters of a format's search.

    reach, step: the trial scales: those that map `largest` to 2 top - 1 + step t, t in -reach .. reach
    every:       the final search covers all rows, instead of only those whose points are not on the grid
    always:      do the final search even if all points are on the grid
    """

    reach: int
    step: float
    every: bool = False
    always: bool = False


@np.errstate(invalid="ignore")
def grid_search(x, weights, largest, start, table, rule):
    """Fit a scale and rows of a grid to each group.

        minimise sum_j w_j (scale v_j - x_j)^2,    v_j = 2 level_j + 1, the levels of each few neighbours a row

    x, weights:     float32 [m, size]; x is about magnitudes
    largest, start: float32 [m], see `GridRule`, and the scale of a group that no try improves; a group with
                    largest <= 0 has scale 0 and rows 0
    table:          GridTable
    rule:           GridRule
    -> scale:       float32 [m]; rarely it is negative
       rows:        int32 [m, size / width]

    Each trial rounds `width` neighbouring x at a time to a point. If the point is not on the grid, the row with the
    least sum_j sqrt(w_j) (scale v_j - x_j)^2 among the point's neighbours is used. For fixed rows the best scale is
    sum w x v / sum w v^2. All arithmetic is in float32, in ggml's order: bit-exact.
    Source: ggml-quants.c, quantize_row_iq2_xs_impl and its sisters, iq2_find_best_neighbour.
    """
    rule = rule._replace(step=np.float32(rule.step))
    return _search(x, weights, np.sqrt(weights), largest, start, table, rule)


@kernel
def _search(x, weights, roots, largest, start, table, rule):
    groups, width = x.shape[0], table.levels.shape[1]
    scale = np.zeros(groups, np.float32)
    rows = np.zeros((groups, x.shape[1] // width), np.int32)
    for chunk in numba.prange((groups + AT_ONCE - 1) // AT_ONCE):
        trial, cost = np.empty((2, rows.shape[1]), np.int32), np.empty(width * table.base, np.float32)
        for g in range(chunk * AT_ONCE, min(groups, (chunk + 1) * AT_ONCE)):
            if largest[g] > 0:
                group = x[g], weights[g], roots[g]
                scale[g] = _search_group(group, largest[g], start[g], table, rule, rows[g], trial, cost)
    return scale, rows


@kernel(parallel=False, inline=False)
def _search_group(group, largest, scale, table, rule, rows, trial, cost):
    """Search one group and write `rows`. -> scale

    trial, cost: scratch, int32 [2, size / width] and float32 [width * base]
    """
    x, weights, roots = group
    tried, kept = trial[0], trial[1]
    score = np.float32(0)
    kept[:] = BESIDE if rule.every else 0
    for t in range(-rule.reach, rule.reach + 1):
        inverse = (np.float32(2 * table.base - 1) + np.float32(t) * rule.step) / largest
        for k in range(rows.shape[0]):
            tried[k] = _row(x, roots, k, inverse, np.float32(1) / inverse, table, cost)
        sum_vx, sum_v2 = _sums(x, weights, tried, table.levels)
        if sum_v2 > 0 and sum_vx * sum_vx > score * sum_v2:
            scale = sum_vx / sum_v2
            score = scale * sum_vx
            for k in range(rows.shape[0]):
                kept[k] = tried[k]
    any_beside = rule.always
    for k in range(rows.shape[0]):
        any_beside = any_beside or kept[k] >= BESIDE
    if any_beside and scale > 0:
        for k in range(rows.shape[0]):
            if rule.every or kept[k] >= BESIDE:
                kept[k] = _row(x, roots, k, np.float32(1) / scale, scale, table, cost)
        sum_vx, sum_v2 = _sums(x, weights, kept, table.levels)
        scale = sum_vx / sum_v2 if sum_v2 > 0 else scale
    for k in range(rows.shape[0]):
        rows[k] = kept[k] % BESIDE
    return scale


@kernel(parallel=False)
def _sums(x, weights, rows, levels):
    """Compute sum_j w_j x_j v_j and sum_j w_j v_j^2 for the values v of these rows."""
    sum_vx, sum_v2 = np.float32(0), np.float32(0)
    width = levels.shape[1]
    for k in range(rows.shape[0]):
        row = rows[k] % BESIDE
        for i in range(width):
            v = np.float32(2) * np.float32(levels[row, i]) + np.float32(1)
            w = weights[width * k + i]
            sum_vx += w * x[width * k + i] * v
            sum_v2 += w * v * v
    return sum_vx, sum_v2


@kernel(parallel=False, inline=False)
def _row(x, roots, k, inverse, scale, table, cost):
    """Find the row for part k of a group; add BESIDE if the part's point is not on the grid."""
    width, base = table.levels.shape[1], table.base
    point = 0
    for i in range(width - 1, -1, -1):
        level = clipped(np.float32(0.5) * (inverse * x[width * k + i] - np.float32(1)), 0, base - 1)
        point = base * point + int(level)
    if table.row_of[point] >= 0:
        return table.row_of[point]
    for i in range(width):
        for level in range(base):
            difference = scale * np.float32(2 * level + 1) - x[width * k + i]
            cost[base * i + level] = roots[width * k + i] * difference * difference
    best, least = table.neighbours[table.first[point]], np.float32(np.inf)
    for n in range(table.first[point], table.first[point + 1]):
        row, distance = table.neighbours[n], np.float32(0)
        for i in range(width):
            distance += cost[base * i + table.levels[row, i]]
        if distance < least:
            best, least = row, distance
    return best + BESIDE
