"""3x3 convolution with fewer multiplications: Winograd's minimal filtering, in tiles of 2x2 or 4x4 pixels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import prange

from refsd.kernels import conv2d_winograd2, conv2d_winograd4
from refsd.kernels._jit import kernel
from refsd.kernels.microkernel import ROWS, lanes, product
from refsd.kernels.scratch import aligned, scratch

_BUDGET = 12 << 20  # bytes of a block of transformed input or output; two of them fit a cache of 32 MB
_FILTERS = 64 << 20  # bytes of filters to transform at a time, if they are not cached


class Filters(NamedTuple):
    """Transformed 3x3 filters G g G^T, computed once for a model and used in every step.

    u: [(tile + 2)^2, panels, C, ROWS]: filter k is row k % ROWS of panel k // ROWS
    """

    u: np.ndarray

    @property
    def tile(self) -> int:
        """Side of the output tile in pixels: 2 or 4."""
        return {16: 2, 36: 4}[self.u.shape[0]]

    @property
    def nbytes(self) -> int:
        return self.u.nbytes


class _Transforms(NamedTuple):
    weight: Callable
    input: Callable
    output: Callable


_OF_TILE = {
    2: _Transforms(
        conv2d_winograd2.transform_weight, conv2d_winograd2.transform_input, conv2d_winograd2.transform_output
    ),
    4: _Transforms(
        conv2d_winograd4.transform_weight, conv2d_winograd4.transform_input, conv2d_winograd4.transform_output
    ),
}


@kernel
def multiply(u, v, m):
    """Compute M[p] = U[p] V[p] for each point p of a tile, which sums over the channels.

    u: [points, panels of filters, C, ROWS]
    v: [points, panels of tiles, C or more, lanes]
    m: [points, K, T or more], dtype of u; the result is written here. K and T are rounded up to whole panels

    Each panel of filters is read once, while the tiles of a point stay in the second-level cache.
    """
    points, filters, _, rows = u.shape
    tiles, width = v.shape[1], v.shape[3]
    for p in prange(points):
        for k in range(filters):
            for t in range(tiles):
                product(u[p, k], v[p, t], m[p, k * rows : (k + 1) * rows, t * width : (t + 1) * width])


def _shape_of_filters(K, C, tile):
    return (tile + 2) ** 2, -(-K // ROWS), C, ROWS


def bytes_of_filters(K, C, tile, dtype):
    """Return the size in bytes of transform_filters' result."""
    return int(np.prod(_shape_of_filters(K, C, tile))) * np.dtype(dtype).itemsize


def transform_filters(weight, tile):
    """Compute U = G g G^T for every filter g.

    weight: [K, C, 3, 3], float32 or float64
    tile:   2 or 4
    """
    K, C = weight.shape[:2]
    u = aligned(_shape_of_filters(K, C, tile), weight.dtype)
    _OF_TILE[tile].weight(weight, u.reshape(*u.shape[:2], C * ROWS))
    return Filters(u)


def conv2d_winograd(x, weight, bias, padding, tile=4):
    """Compute the convolution of conv2d.py for 3x3 filters at stride 1.

        Y = A^T [sum_c (G g G^T) * (B^T d B)] A

    g is a filter, d a patch of the input that is two pixels wider and higher than the tile Y. * is element-wise, so
    the sum over channels is a matrix product for each element of a patch.

    x:       [N, C, H, W], float32 or float64
    weight:  from transform_filters; or [K, C, 3, 3], transformed for `tile` at each call, 64 MB at a time
    bias:    [K]
    padding: (top, bottom, left, right), in pixels
    -> y:    [N, K, P, Q], dtype of x

    Sums accumulate in the dtype of x. Tiles that extend beyond the edge are cut off. Rows of tiles are processed in
    blocks, with persistent buffers of 24 MB (or two rows). No bit depends on the number of threads.
    Error: see conv2d_winograd2.py and conv2d_winograd4.py.
    Source: Lavin & Gray 2015, section 4.1; algorithm 1.
    """
    N, C, H, W = x.shape
    K = bias.shape[0]
    top, bottom, left, right = padding
    y = np.empty((N, K, H + top + bottom - 2, W + left + right - 2), x.dtype)
    if isinstance(weight, Filters):
        _convolve(x, weight, bias, padding, y)
        return y
    step = max(ROWS, _FILTERS // bytes_of_filters(1, C, tile, x.dtype) * ROWS)
    for k in range(0, K, step):
        some = weight[k : k + step]
        u = scratch("winograd u", _shape_of_filters(len(some), C, tile), x.dtype)
        _OF_TILE[tile].weight(some, u.reshape(*u.shape[:2], C * ROWS))
        _convolve(x, Filters(u), bias[k : k + step], padding, y[:, k : k + step])
    return y


def _convolve(x, filters, bias, padding, y):
    C = x.shape[1]
    N, K, P, Q = y.shape
    tile, points, panels = filters.tile, *filters.u.shape[:2]
    transforms = _OF_TILE[tile]
    down, across = -(-P // tile), -(-Q // tile)
    blocks = -(-down * across * points * max(C, K) * x.itemsize // _BUDGET)
    rows = -(-down // min(down, blocks))
    width = lanes(x.dtype)
    for n in range(N):
        for first in range(0, down, rows):
            count = min(rows, down - first)
            tiles = -(-count * across // width)
            # A channel and a vector more than needed: a power of two apart, the points would share cache sets.
            v = scratch("winograd v", (points, tiles, C + 1, width), x.dtype)
            m = scratch("winograd m", (points, panels * ROWS, (tiles + 1) * width), x.dtype)
            transforms.input(x[n], (padding[0], padding[2]), first, count, across, v)
            multiply(filters.u, v, m)
            transforms.output(m, bias, y[n], first, count, across)
