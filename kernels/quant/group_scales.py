"""Quantize super-blocks of 256 weights: each group has a scale, and the scales are codes under one scale."""

from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.affine_search import WEIGHTED_STEPS, affine_search, restate_affine
from refsd.kernels.quant.block_type import read_back
from refsd.kernels.quant.importance import columns, error_weights, row_sums
from refsd.kernels.quant.positive_search import positive_search
from refsd.kernels.quant.rounding import clipped, nearest


class AffineBlocks(NamedTuple):
    """n super-blocks of k groups. d, dmin: float32 [n]; scales, minimums: uint8 [n, k]; codes: uint8 [n, 256]"""

    d: np.ndarray
    dmin: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray
    codes: np.ndarray


def affine_blocks(x, weights, top, scale_top, steps, absolute=False):
    """Quantize without importance.

    x:         float32 [n, 256]
    weights:   float32 [m, size], of the error of each element of m groups
    top:       the largest code of a weight
    scale_top: the largest code of a scale or minimum
    steps, absolute: see `affine_search`

    The largest scale of a super-block gets the code scale_top, and the others are rounded; minimums likewise.
    """
    groups = x.reshape(weights.shape)
    fit = affine_search(groups, weights, top, steps, absolute)
    in_blocks = (x.shape[0], 256 // weights.shape[1])
    d, scales = _shared_scale(fit.scale.reshape(in_blocks), scale_top)
    dmin, minimums = _shared_scale(-fit.low.reshape(in_blocks), scale_top)
    return _restated(groups, fit, top, AffineBlocks(d, dmin, scales, minimums, fit.codes))


def weighted_affine_blocks(x, importance, size, factor, top, scale_top):
    """Quantize with importance.

    x:          float32 [n, 256]
    importance: [width], one number a column
    size:       elements in a group
    factor:     see `error_weights`

    In the search for the super-block's scale, a group's weight is the sum of its elements' weights.
    """
    weights = error_weights(x, columns(importance, x), 256, factor).reshape(-1, size)
    groups = x.reshape(weights.shape)
    fit = affine_search(groups, weights, top, WEIGHTED_STEPS)
    sums = row_sums(weights).reshape(-1, 256 // size)
    d, scales = positive_search(fit.scale.reshape(sums.shape), sums, scale_top)
    dmin, minimums = positive_search(-fit.low.reshape(sums.shape), sums, scale_top)
    return _restated(groups, fit, top, AffineBlocks(d, dmin, scales, minimums, fit.codes))


def _restated(groups, fit, top, blocks):
    scale, minimum = read_back(blocks.d, blocks.scales), read_back(blocks.dmin, blocks.minimums)
    codes = restate_affine(groups, scale, minimum, fit, top)
    return blocks._replace(codes=codes.reshape(-1, 256))


@kernel
def _shared_scale(values, top):
    """Compute d = max / top and codes round(top / max values); all 0 if max <= 0. -> float32 [n], uint8 [n, k]"""
    d = np.empty(values.shape[0], np.float32)
    codes = np.empty(values.shape, np.uint8)
    for b in numba.prange(values.shape[0]):
        largest = np.float32(0)
        for g in range(values.shape[1]):
            largest = values[b, g] if values[b, g] > largest else largest
        inverse = np.float32(top) / largest if largest > 0 else np.float32(0)
        d[b] = largest / np.float32(top)
        for g in range(values.shape[1]):
            codes[b, g] = min(np.uint8(nearest(inverse * values[b, g])), np.uint8(top))
    return d, codes


@kernel
def signed_scale(values, top):
    """Compute d and codes for values of both signs: the first of largest magnitude gets the code 0, meaning -top.

        d = -largest / top    code = round(value / d) + top, kept within 0 .. 2 top - 1

    values: float32 [n, k] -> float32 [n], uint8 [n, k]; all is 0 where nothing is not 0
    """
    d = np.empty(values.shape[0], np.float32)
    codes = np.empty(values.shape, np.uint8)
    for b in numba.prange(values.shape[0]):
        largest = np.float32(0)
        for g in range(values.shape[1]):
            largest = values[b, g] if abs(values[b, g]) > abs(largest) else largest
        inverse = np.float32(-top) / largest
        d[b] = np.float32(1) / inverse if largest != 0 else np.float32(0)
        for g in range(values.shape[1]):
            code = clipped(inverse * values[b, g], -top, top - 1) + np.float32(top)
            codes[b, g] = np.uint8(code) if largest != 0 else np.uint8(0)
    return d, codes


@kernel
def odd_scales(values, divisor, top):
    """Compute d = max / divisor, and the codes l in 0 .. top for which d (2 l + 1) is nearest to the values.

    values: float32 [n, k], >= 0 -> float32 [n], uint8 [n, k]; nothing above 0 gives 0
    """
    d = np.zeros(values.shape[0], np.float32)
    codes = np.zeros(values.shape, np.uint8)
    for b in numba.prange(values.shape[0]):
        largest = np.float32(0)
        for g in range(values.shape[1]):
            largest = largest if largest > values[b, g] else values[b, g]
        if largest != 0:
            d[b] = largest / np.float32(divisor)
            inverse = np.float32(1) / d[b]
            for g in range(values.shape[1]):
                codes[b, g] = np.uint8(clipped(np.float32(0.5) * (inverse * values[b, g] - np.float32(1)), 0, top))
    return d, codes


@kernel
def magnitudes(x, rms):
    """Compute error weights without importance: |x|, or |x| + the group's root mean square.

    x: float32 [m, size] -> float32 [m, size]
    """
    weights = np.empty(x.shape, np.float32)
    for g in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[g, j] * x[g, j]
        base = np.sqrt(total / np.float32(x.shape[1])) if rms else np.float32(0)
        for j in range(x.shape[1]):
            weights[g, j] = base + abs(x[g, j])
    return weights
