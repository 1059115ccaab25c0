"""Fit groups of weights to three levels on a grid: the search behind IQ1_S and IQ1_M.

The three levels are -1, 0 and 1, all shifted by 1/8 up or down. In sorted order the weights of the lowest level
come first and those of the highest last, so the best levels are two cuts of the sorted list; all pairs of cuts are
tried.
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel

AT_ONCE = 16
_SHIFT = np.float32(0.125)
_LEAST = np.float32(-3.4028235e38)


def split_together(x, weights, nothing, table):
    """Fit a scale, one shift and rows of a grid to each group, as IQ1_S does.

        minimise sum_j w_j (scale (level_j + shift) - x_j)^2

    x, weights: float32 [m, size]
    nothing:    a group whose largest magnitude is below this has scale 0
    table:      GridTable of a ternary grid
    -> scale:   float32 [m], >= 0
       up:      bool [m, size / 8], whether a part's shift is +1/8
       rows:    int32 [m, size / 8]

    For fixed levels v the best scale is sum w v x / sum w v^2; the error falls as (sum w v x)^2 / sum w v^2 grows.
    A part beside the grid takes the neighbour whose error is least under that scale. Equal x keep their order.
    All in float32, in ggml's order: bit-exact.
    Source: ggml-quants.c, quantize_row_iq1_s_impl, iq1_find_best_neighbour2.
    """
    return _search(x, weights, np.float32(nothing), table, False)


def split_by_halves(x, weights, nothing, table):
    """Fit a scale, a shift for each of two parts and rows of a grid to each group, as IQ1_M does.

    x, weights: float32 [m, 16]

    Source: ggml-quants.c, quantize_row_iq1_m_impl of ggml 0.25, which keeps sums by halves. Before (0.9.8) they ran
    over the elements anew for each pair of cuts, and rounded otherwise.
    """
    return _search(x, weights, np.float32(nothing), table, True)


@kernel
def _search(x, weights, nothing, table, halves):
    groups, parts = x.shape[0], x.shape[1] // 8
    scale, up = np.zeros(groups, np.float32), np.ones((groups, parts), np.bool_)
    rows = np.zeros((groups, parts), np.int32)
    for chunk in numba.prange((groups + AT_ONCE - 1) // AT_ONCE):
        order, level = np.empty(x.shape[1], np.int64), np.empty(x.shape[1], np.int64)
        sums, cost = np.zeros((4, x.shape[1] + 1), np.float32), np.empty((8, 3), np.float32)
        for g in range(chunk * AT_ONCE, min(groups, (chunk + 1) * AT_ONCE)):
            if _largest(x[g]) >= nothing:
                _sort(x[g], order)
                if halves:
                    found = _cut_halves(x[g], weights[g], order, sums, up[g])
                else:
                    found = _cut(x[g], weights[g], order, sums, up[g])
                scale[g] = _place(x[g], weights[g], order, found, level, up[g], rows[g], table, cost)
    return scale, up, rows


@kernel(parallel=False)
def _largest(x):
    largest = np.float32(0)
    for j in range(x.shape[0]):
        largest = max(largest, abs(x[j]))
    return largest


@kernel(parallel=False)
def _sort(x, order):
    """Sort the indices of x by value, stably."""
    for j in range(x.shape[0]):
        i = j
        while i > 0 and x[j] < x[order[i - 1]]:
            order[i] = order[i - 1]
            i -= 1
        order[i] = j


@kernel(parallel=False)
def value(level, up):
    """Return the value of level 0, 1 or 2. -> float32"""
    return np.float32(level) - np.float32(1) + (_SHIFT if up else -_SHIFT)


@kernel(parallel=False, inline=False)
def _cut(x, weights, order, sums, up):
    """Find the best cuts with one shift for all, written to `up`. -> scale, first cut or -1, second cut"""
    size = x.shape[0]
    sum_x, sum_w = sums[0], sums[1]
    for j in range(size):
        i = order[j]
        sum_x[j + 1] = sum_x[j] + weights[i] * x[i]
        sum_w[j + 1] = sum_w[j] + weights[i]
    best, scale, first, second = _LEAST, np.float32(0), -1, -1
    for cut1 in range(size + 1):
        for cut2 in range(cut1, size + 1):
            low_x, middle_x, high_x = sum_x[cut1], sum_x[cut2] - sum_x[cut1], sum_x[size] - sum_x[cut2]
            low_w, middle_w, high_w = sum_w[cut1], sum_w[cut2] - sum_w[cut1], sum_w[size] - sum_w[cut2]
            for down in range(2):
                v0, v1, v2 = value(0, not down), value(1, not down), value(2, not down)
                sum_vx = low_x * v0 + middle_x * v1 + high_x * v2
                sum_v2 = low_w * v0 * v0 + middle_w * v1 * v1 + high_w * v2 * v2
                if sum_v2 > 0 and sum_vx * sum_vx > best * sum_v2:
                    scale = sum_vx / sum_v2
                    best, first, second = scale * sum_vx, cut1, cut2
                    up[:] = not down
    return scale, first, second


@kernel(parallel=False, inline=False)
def _cut_halves(x, weights, order, sums, up):
    """As _cut, with one shift for each half. Moving an element across a cut changes its level by 1: sums follow."""
    size = x.shape[0]
    for j in range(size):
        i = order[j]
        for h in range(2):
            inside = i // (size // 2) == h
            sums[h, j + 1] = sums[h, j] + weights[i] * x[i] if inside else sums[h, j]
            sums[2 + h, j + 1] = sums[2 + h, j] + weights[i] if inside else sums[2 + h, j]
    best, scale, first, second = _LEAST, np.float32(0), -1, -1
    for cut1 in range(size + 1):
        for cut2 in range(cut1, size + 1):
            for down0 in range(2):
                vx0, v20 = _half_sums(sums[0], sums[2], cut1, cut2, not down0)
                for down1 in range(2):
                    vx1, v21 = _half_sums(sums[1], sums[3], cut1, cut2, not down1)
                    sum_vx, sum_v2 = vx0 + vx1, v20 + v21
                    if sum_v2 > 0 and sum_vx * sum_vx > best * sum_v2:
                        scale = sum_vx / sum_v2
                        best, first, second = scale * sum_vx, cut1, cut2
                        up[0], up[1] = not down0, not down1
    return scale, first, second


@kernel(parallel=False)
def _half_sums(sum_x, sum_w, cut1, cut2, up):
    """Compute sum w v x and sum w v^2 of a half."""
    v0, v1, v2 = value(0, up), value(1, up), value(2, up)
    last = sum_x.shape[0] - 1
    vx = sum_x[last] * v2 - (sum_x[cut1] + sum_x[cut2])
    v2_sum = sum_w[last] * v2 * v2 + sum_w[cut1] * (v0 * v0 - v1 * v1) + sum_w[cut2] * (v1 * v1 - v2 * v2)
    return vx, v2_sum


@kernel(parallel=False, inline=False)
def _place(x, weights, order, found, level, up, rows, table, cost):
    """Put the parts of a group on the grid; writes `rows`. A negative scale mirrors levels and shifts. -> scale"""
    scale, first, second = found
    if first < 0:
        return np.float32(0)
    for j in range(x.shape[0]):
        level[order[j]] = int(j >= first) + int(j >= second)
    if scale < 0:
        scale = -scale
        for j in range(x.shape[0]):
            level[j] = 2 - level[j]
        for k in range(up.shape[0]):
            up[k] = not up[k]
    beside = False
    for k in range(rows.shape[0]):
        point = 0
        for i in range(7, -1, -1):
            point = 3 * point + level[8 * k + i]
        rows[k] = table.row_of[point]
        if rows[k] < 0:
            beside = True
            rows[k] = _neighbour(x, weights, k, scale, up[k], point, table, cost)
    if beside:
        sum_vx, sum_v2 = np.float32(0), np.float32(0)
        for j in range(x.shape[0]):
            v = value(table.levels[rows[j // 8], j % 8], up[j // 8])
            sum_vx += weights[j] * v * x[j]
            sum_v2 += weights[j] * v * v
        scale = sum_vx / sum_v2 if sum_vx > 0 and sum_v2 > 0 else scale
    return scale


@kernel(parallel=False)
def _neighbour(x, weights, k, scale, up, point, table, cost):
    """The neighbour of a point whose error is least for part k of a group. -> its row"""
    for i in range(8):
        for level in range(3):
            difference = scale * value(level, up) - x[8 * k + i]
            cost[i, level] = weights[8 * k + i] * difference * difference
    best, least = table.neighbours[table.first[point]], np.float32(np.inf)
    for n in range(table.first[point], table.first[point + 1]):
        row, error = table.neighbours[n], np.float32(0)
        for i in range(8):
            error += cost[i, table.levels[row, i]]
        if error < least:
            best, least = row, error
    return best
