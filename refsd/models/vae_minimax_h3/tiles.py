"""How MiniMax-H3's autoencoder lays tiles over a frame, and puts them together again."""

from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput


class Tiles(NamedTuple):
    """Tiles along an axis.

    places:   first pixel of each, and the pixel behind its last
    overlaps: pixels that each but the first shares with the one before it
    """

    places: list[tuple[int, int]]
    overlaps: list[int]


def tiles(length: int, tile: int, overlap: int, step: int) -> Tiles:
    """Lay as few tiles as cover an axis and share at least `overlap` pixels; what is too much is shared, too.

    step: pixels of a latent, in which the overlaps grow, in turn
    Raises BadInput if tiles share all their pixels.
    Source: diffusers autoencoder_kl_minimax_h3.py, _split_tiles.
    """
    if length <= tile:
        return Tiles([(0, length)], [])
    if overlap >= tile:
        raise BadInput(f"tiles of {tile} pixels that share {overlap}: expected an overlap below the tile's side")
    n = -(-(length - overlap) // (tile - overlap))
    more = (tile * n - overlap * (n - 1) - length) // step
    overlaps = [overlap + step * (more // (n - 1) + (i < more % (n - 1))) for i in range(n - 1)]
    starts = np.cumsum([0, *(tile - shared for shared in overlaps)]).tolist()
    return Tiles([(start, start + tile) for start in starts], overlaps)


def stitched(parts, row_overlaps, column_overlaps, faded):
    """Put tiles together: each is faded in from the one above it, then from the one on its left.

    Both are taken as they were run, before they were faded themselves, so corners are not the mean of four tiles.

    parts: rows of arrays [..., h, w]; the overlaps are in their pixels
    faded: a, b, extent, axis -> b with a's end faded into its beginning
    """
    rows = []
    for i, row in enumerate(parts):
        whole = []
        for j, part in enumerate(row):
            down, across = part.ndim - 2, part.ndim - 1
            y = faded(parts[i - 1][j], part, row_overlaps[i - 1], down) if i else part
            y = faded(row[j - 1], y, column_overlaps[j - 1], across) if j else y
            y = y[..., : y.shape[down] - row_overlaps[i], :] if i < len(parts) - 1 else y
            whole.append(y[..., : y.shape[across] - column_overlaps[j]] if j < len(row) - 1 else y)
        rows.append(np.concatenate(whole, axis=-1))
    return np.concatenate(rows, axis=-2)
