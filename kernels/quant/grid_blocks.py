"""Quantize super-blocks of 256 weights to rows of a grid, separate signs and 4-bit group scales: IQ2 and IQ3."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.quant.grid_search import grid_search
from refsd.kernels.quant.group_scales import odd_scales
from refsd.kernels.quant.signs import split_signs


class GridBlocks(NamedTuple):
    """n blocks. d: float32 [n]; scales: uint8 [n, groups]; rows: int32 [n, parts]; signs: uint8 [n, 32]"""

    d: np.ndarray
    scales: np.ndarray
    rows: np.ndarray
    signs: np.ndarray


def grid_blocks(x, weights, even, nothing, table, rule):
    """Quantize x.

    x:       float32 [n, 256]
    weights: float32 [m, size], of the error of each element of m groups
    even:    see `split_signs`; the eighth sign, which follows from the others, is cleared
    nothing: a group whose largest magnitude is below this has scale 0
    table, rule: see `grid_search`
    """
    magnitudes, signs = split_signs(x.reshape(weights.shape), weights, even)
    largest = magnitudes.max(axis=1)
    largest[largest < np.float32(nothing)] = 0
    start = largest / np.float32(2 * table.base - 1)
    return assembled(grid_search(magnitudes, weights, largest, start, table, rule), signs, largest, even)


def assembled(found, signs, largest, even):
    """Assemble blocks from a search's result. A negative scale is made positive by inverting the group's signs."""
    scale, rows = found
    signs = np.where(scale[:, None] < 0, ~signs, signs) & (0x7F if even else 0xFF)
    signs[~(largest > 0)] = 0
    groups = 32 // signs.shape[1]
    d, scales = odd_scales(abs(scale).reshape(-1, groups), 31, 15)
    return GridBlocks(d, scales, rows.reshape(-1, groups * rows.shape[1]), signs.reshape(-1, 32))


def sign_words(signs, scales):
    """Pack 4 x 7 signs and a 4-bit scale into little-endian 32-bit words. uint8 [n, 32], [n, 8] -> [n, 32]"""
    quads = signs.reshape(-1, 8, 4).astype("<u4")
    words = quads[:, :, 0] | quads[:, :, 1] << 7 | quads[:, :, 2] << 14 | quads[:, :, 3] << 21
    return (words | scales.astype("<u4") << 28).view(np.uint8)


def nibbles(codes):
    """Pack pairs of 4-bit codes, the first in the low nibble. uint8 [n, k] -> [n, k / 2]"""
    return codes[:, ::2] | codes[:, 1::2] << 4
