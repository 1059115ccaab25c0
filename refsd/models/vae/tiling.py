"""Run an autoencoder tile by tile, so that its memory does not grow with the picture.

Neither rule here equals running on the whole picture, because group norms, attention and zero padding act per tile.
The rules blend tiles differently: stable-diffusion.cpp spaces the tiles evenly and adds them up with smooth
weights; diffusers places them at fixed steps, lets the last one be smaller, and blends each linearly with its
finished neighbours above and to the left.

`run` is one half of an autoencoder as a function of one array: lambda z: decode(m, z), or
lambda x: np.concatenate(encode(m, x), axis=1), because both engines blend mean and logvar alike.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.circular import CircularAxes
from refsd.numerics.errors import BadInput

Run = Callable[[np.ndarray], np.ndarray]

DEFAULT_SIZE, SMALLEST_SIZE, LARGEST_OVERLAP = 32, 4, 0.5
# Factor of the tile size when encoding: stable-diffusion.cpp up to May 2026 (sdcpp-python 0.4.7), and since.
ENCODE_FACTOR, ENCODE_FACTOR_NEWER = 1.30539, 2.0


class Tiling(NamedTuple):
    """stable-diffusion.cpp's tiling options, as in sd-cli.

    size_x, size_y:         tile size in latent pixels; values below 4 mean 32
    overlap:                share of a tile's size, clipped to 0..0.5
    relative_x, relative_y: 0..1: tile size as a share of the latent's; above 1: number of tiles; 0: size_x, size_y
    """

    size_x: int = 0
    size_y: int = 0
    overlap: float = 0.5
    relative_x: float = 0.0
    relative_y: float = 0.0

    def target(self) -> float:
        return max(min(self.overlap, LARGEST_OVERLAP), 0.0)

    def sizes(self, height: int, width: int, larger: float = 1.0) -> tuple[int, int]:
        """Return the tile size for a latent, (rows, columns) in latent pixels.

        larger: 1 to decode, ENCODE_FACTOR to encode

        Source: stable-diffusion.cpp vae.hpp, VAE::get_tile_sizes; in float32, as there.
        """
        return (
            self._size(self.size_y, self.relative_y, height, larger),
            self._size(self.size_x, self.relative_x, width, larger),
        )

    def _size(self, requested: int, relative: float, length: int, larger: float) -> int:
        size = requested if requested >= SMALLEST_SIZE else DEFAULT_SIZE
        if relative > 0:
            part, overlap = np.float32(relative), np.float32(self.target())
            if part > 1:
                part = np.float32(1) / (part - part * overlap + overlap)
            size = int(np.floor(np.float32(length) * part + np.float32(0.5)))
        size = int(np.float32(size) * np.float32(larger))
        return max(min(size, length), SMALLEST_SIZE)

    def circular(self, circular: CircularAxes, height: int, width: int) -> tuple[CircularAxes, CircularAxes]:
        """Decide for each axis what wraps around -> (axes of convolutions inside a tile, axes of the tiles).

        Source: stable-diffusion.cpp stable-diffusion.cpp, configure_image_vae_axes.
        """
        rows, columns = self.sizes(height, width)
        inside = circular._replace(x=circular.x and columns >= width, y=circular.y and rows >= height)
        return inside, circular._replace(x=circular.x and columns < width, y=circular.y and rows < height)


def smootherstep(t):
    """t^3 (t (6 t - 15) + 10): rises from 0 to 1, with first two derivatives 0 at both ends; s(t) + s(1-t) = 1.

    Source: Perlin 2002, Improving noise, section 2.
    """
    return t * t * t * (t * (6 * t - 15) + 10)


def shared(length: int, size: int, overlap: float, wraps: bool = False) -> int:
    """Return how many latent pixels neighbouring tiles share when they are spaced evenly over an axis.

    length:  size of the latent; size: size of a tile; overlap: requested share of a tile
    wraps:   True if the last tile is a neighbour of the first; a negative result then means gaps between tiles
    Source: stable-diffusion.cpp ggml_extend.hpp, sd_tiling_calc_tiles; in float32, as there.
    """
    wanted = int(np.float32(size) * np.float32(overlap))
    step = size - wanted
    if wraps:
        count = max(length // step, 1)
        even = np.float32(size - length // count) / np.float32(size)
        return int(np.float32(size) * (np.float32(0.5) if count == 1 and even > 0 else even))
    count = int((length - wanted) / step)
    beyond = ((count + 1) * step + wanted) % length
    if beyond != step and beyond <= count * (size // 2 - wanted):
        count += 1
    if count > 2:
        even = np.float32(size * count - length) / np.float32(size * (count - 1))
    else:
        even = np.float32(max(2 * size - length, 0) if length > size else 0) / np.float32(size)
    return int(np.float32(size) * even)


class Tile(NamedTuple):
    """A tile on an axis. start: its first latent pixel; skip: its leading pixels that the previous tile covers
    already, not counting those that they share
    """

    start: int
    skip: int


def places(length: int, size: int, share: int, wraps: bool = False) -> list[Tile]:
    """Return the tiles of an axis, in order. Without wrapping, the last one ends at the end of the axis.

    Source: stable-diffusion.cpp ggml_extend.hpp, process_tiles_2d.
    """
    last = length - min(size, length)
    starts = range(0, length, size - share)
    if wraps:
        return [Tile(start, 0) for start in starts]
    inside = [Tile(start, 0) for start in starts if start < last]
    return [*inside, Tile(last, len(inside) * (size - share) - last)]


def tiled_sdcpp(
    run: Run,
    x: np.ndarray,
    size: tuple[int, int],
    overlap: float = 0.5,
    up: int = 1,
    down: int = 1,
    wraps: CircularAxes | None = None,
) -> np.ndarray:
    """Run in stable-diffusion.cpp's tiles: multiply each by the product of its two ramps, and add them up.

        ramp(i) = smootherstep(min((i - skip) / shared, (size - i) / shared, 1)),   1 at the picture's borders

    run:      [N, C, h, w] -> [N, K, h * up / down, w * up / down]
    x:        [N, C, H, W]
    size:     tile size, (rows, columns), in latent pixels: pixels of x to decode, of the result to encode
    up, down: scale from x to the result, up / down: 8 and 1 to decode, 1 and 8 to encode
    wraps:    axes on which tiles at opposite edges overlap too
    -> [N, K, H * up / down, W * up / down], dtype of run's results

    The weights are float64; sums accumulate in float64 or, for results in float32 or less, in float32.
    If tiles wrap and the axis is no multiple of their spacing, the weights of the last and the first tile add up to
    more than 1, as in stable-diffusion.cpp (704 pixels in tiles of 32). If tiles share no pixels, later tiles
    overwrite earlier ones.

    Raises BadInput for an overlap beyond 0 to 0.5, for tiles smaller than 2, and for wrapping tiles that share no
    pixels on exactly one axis, where stable-diffusion.cpp aborts.
    Source: stable-diffusion.cpp ggml_extend.hpp, process_tiles_2d, sd_tensor_merge_2d.
    """
    if not 0 <= overlap <= LARGEST_OVERLAP or min(size) < 2:
        raise BadInput(f"tiles of {size[1]}x{size[0]} that share {overlap:g}: expected 2x2 or more, and 0 to 0.5")
    loops = (wraps.y, wraps.x) if wraps else (False, False)
    lengths = [n // down for n in x.shape[2:]]
    share = [shared(*axis) for axis in zip(lengths, size, (overlap, overlap), loops, strict=True)]
    blends = max(share) > 0
    if blends and any(loop and n <= 0 for loop, n in zip(loops, share, strict=True)):
        raise BadInput(f"tiles of {size[1]}x{size[0]} wrap around without overlap: give them some, or another size")
    size = min(size[0], lengths[0]), min(size[1], lengths[1])
    rows, columns = (places(*axis) for axis in zip(lengths, size, share, loops, strict=True))
    out = None
    for row in rows:
        for column in columns:
            down_to, right_to = (
                (tile.start * down + np.arange(n * down)) % whole
                for tile, n, whole in zip((row, column), size, x.shape[2:], strict=True)
            )
            y = run(x[:, :, down_to[:, None], right_to])
            if out is None:
                out = np.zeros((*y.shape[:2], *(n * up for n in lengths)), np.result_type(y.dtype, np.float32))
            ramps = [
                _ramp(tile.start * up, tile.skip * up, n * up, length * up, own * up, loop)
                for tile, n, length, own, loop in zip((row, column), size, lengths, share, loops, strict=True)
            ]
            to = np.ix_(*(np.arange(n) for n in y.shape[:2]), *(places for places, _ in ramps))
            y = y[:, :, row.skip * up :, column.skip * up :]
            if blends:
                out[to] += y * (ramps[0][1][:, None] * ramps[1][1]).astype(out.dtype)
            else:
                out[to] = y
    assert out is not None
    return out.astype(y.dtype, copy=False)


def _ramp(start: int, skip: int, size: int, length: int, share: int, wraps: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a tile's pixels from `skip` on along an axis, and their weights, in result pixels."""
    i = np.arange(skip, size)
    t = np.ones(len(i))
    if share > 0 and (wraps or start > 0):
        t = np.minimum(t, (i - skip) / share)
    if share > 0 and (wraps or start < length - size):
        t = np.minimum(t, (size - i) / share)
    return (start + i) % length, smootherstep(t)


def tiled_diffusers(run: Run, x: np.ndarray, size: int, out_size: int, overlap: float = 0.25) -> np.ndarray:
    """Run in diffusers' tiles: blend each with the finished ones above and to its left.

        tile[y] <- above[y - n] (1 - y / n) + tile[y] y / n,    y = 0..n-1,  n = int(out_size * overlap); then the
        same with the tile to the left; its first out_size - n rows and columns go into the result

    run:      [N, C, h, w] -> [N, K, h', w']
    x:        [N, C, H, W]; run as a whole if no side is larger than a tile
    size:     tile size in x, out_size: in the result: tile_latent_min_size and tile_sample_min_size to decode, the
              other way round to encode
    -> [N, K, H', W'], dtype of run's results

    Sums accumulate in float64 or, for results in float32 or less, in float32.

    Raises BadInput if tiles are so small, or the overlap so large, that no pixel of a tile is left.
    Source: diffusers autoencoder_kl.py, tiled_decode, _tiled_encode, blend_v, blend_h.
    """
    if max(x.shape[2:]) <= size:
        return run(x)
    step, blend = int(size * (1 - overlap)), int(out_size * overlap)
    kept = out_size - blend
    if min(step, kept) < 1 or blend < 0:
        raise BadInput(f"tiles of {size}, of {out_size} run, that share {overlap:g}: nothing of them is left")
    rows, above = [], {}
    for i in range(0, x.shape[2], step):
        row, left = [], None
        for j in range(0, x.shape[3], step):
            y = run(np.ascontiguousarray(x[:, :, i : i + size, j : j + size]))
            tile = y.astype(np.result_type(y.dtype, np.float32))
            if i > 0:
                _mix(above[j], tile, blend, 2)
            if left is not None:
                _mix(left, tile, blend, 3)
            row.append(tile[:, :, :kept, :kept].astype(y.dtype))
            above[j] = tile[:, :, max(tile.shape[2] - blend, 0) :].copy()
            left = tile[:, :, :, max(tile.shape[3] - blend, 0) :].copy()
        rows.append(np.concatenate(row, axis=3))
    return np.concatenate(rows, axis=2)


def _mix(before: np.ndarray, tile: np.ndarray, blend: int, axis: int) -> None:
    """Blend the last pixels of `before` into the first of `tile`, in place."""
    n = min(before.shape[axis], tile.shape[axis], blend)
    if not n:
        return
    before, first = np.moveaxis(before, axis, -1)[..., -n:], np.moveaxis(tile, axis, -1)[..., :n]
    part = (np.arange(n) / n).astype(tile.dtype)
    first[...] = before * (1 - part) + first * part
