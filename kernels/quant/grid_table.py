"""Tabulate the rows of a grid that are nearest to each point outside the grid."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.quant.block_type import frozen


class GridTable(NamedTuple):
    """A grid of `rows` groups of `width` levels, and every other group's neighbours on it.

    A group of levels is a point; its number has the first level as the least significant digit.

    base:       how many levels there are
    levels:     uint8 [rows, width]
    row_of:     int32 [points], the row of a point on the grid, -1 for one beside it
    first:      int32 [points + 1], where the neighbours of a point begin in `neighbours`
    neighbours: int32, rows, the nearest first, of those as near the lowest first
    """

    base: int
    levels: np.ndarray
    row_of: np.ndarray
    first: np.ndarray
    neighbours: np.ndarray


def grid_table(grid: np.ndarray, distances: int) -> GridTable:
    """Find, for each point that is not on the grid, all rows within its `distances` smallest distances.

    grid: int8 [rows, width], any ascending values for the levels

    ggml's tables also hold the points with a level that does not occur; no weight is rounded to one.
    Source: ggml-quants.c, iq2xs_init_impl and iq3xs_init_impl.
    """
    values, digits = np.unique(grid, return_inverse=True)
    levels, width = digits.reshape(grid.shape), grid.shape[1]
    powers = len(values) ** np.arange(width)
    row_of = np.full(len(values) ** width, -1, np.int32)
    row_of[levels @ powers] = np.arange(len(levels))
    counts = np.zeros(len(row_of), np.int32)
    neighbours = []
    beside = np.flatnonzero(row_of < 0)
    for some in np.array_split(beside, len(beside) // 512 + 1):
        points = some[:, None] // powers % len(values)
        squares = ((points**2).sum(axis=1)[:, None] + (levels**2).sum(axis=1)).astype(np.float32)
        distance = squares - 2 * (points.astype(np.float32) @ levels.T.astype(np.float32))
        limit = distance.min(axis=1, keepdims=True)
        for _ in range(distances - 1):
            limit = np.where(distance > limit, distance, np.inf).min(axis=1, keepdims=True)
        point, row = np.nonzero(distance <= limit)
        counts[some] = np.bincount(point, minlength=len(some))
        neighbours.append(row[np.lexsort((row, distance[point, row], point))])
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    arrays = levels.astype(np.uint8), row_of, first, np.concatenate(neighbours).astype(np.int32)
    return GridTable(len(values), *(frozen(a) for a in arrays))
