"""Tiling, a pixel at a time: which tiles reach a pixel, and with what weight. Geometry in integers, by hand.

stable-diffusion.cpp: n tiles of s pixels cover L where n s - (n - 1) o = L, so neighbours share o pixels,
o = (n s - L) / (n - 1) rounded down; around a ring n (s - o) = L.
"""

from functools import cache

import numpy as np


def shared(length, size, percent, wraps=False):
    """percent: the overlap asked for, an integer that divides into tiles without a rest of rounding"""
    asked = size * percent // 100
    apart = size - asked
    if wraps:
        n = max(length // apart, 1)
        if n == 1 and size > length // n:
            return size // 2
        return size - length // n
    n = max(length - asked, 0) // apart
    beyond = ((n + 1) * apart + asked) % length
    n += beyond != apart and beyond <= n * (size // 2 - asked)
    if n > 2:
        return (n * size - length) // (n - 1)
    return max(2 * size - length, 0) if length > size else 0


def weights(length, size, share, wraps=False):
    """One row a tile, one column a pixel: its start, and how much of each pixel comes from it."""
    starts, at = [], 0
    while at < length:
        starts.append(at)
        if not wraps and at + size >= length:
            break
        at += size - share
    rows = []
    for at in starts:
        start = at if wraps else min(at, length - size)
        row = np.zeros(length)
        for pixel in range(length):
            own = (pixel - start) % length
            if own >= size or (not wraps and pixel < at):
                continue
            fades_in, fades_out = wraps or at > 0, wraps or start < length - size
            t = 1.0
            if share and fades_in:
                t = min(t, (pixel - at) % length / share)
            if share and fades_out:
                t = min(t, (size - own) / share)
            row[pixel] = np.polyval([6, -15, 10, 0, 0, 0], t)
        rows.append((start, row))
    return rows


def tiled_sdcpp(run, x, size, percent, up=1, wraps=(False, False)):
    """x [N, C, H, W] -> [N, K, up H, up W]; size (rows, columns), smaller than x; runs every tile whole."""
    axes = []
    for length, s, loop in zip(x.shape[2:], size, wraps, strict=True):
        axes.append(weights(length * up, s * up, shared(length, s, percent, loop) * up, loop))
    total = 0.0
    for top, rows in axes[0]:
        for left, columns in axes[1]:
            tile = run(np.roll(x, (-top // up, -left // up), (2, 3))[:, :, : size[0], : size[1]])
            whole = np.zeros((*tile.shape[:2], x.shape[2] * up, x.shape[3] * up))
            whole[:, :, : size[0] * up, : size[1] * up] = tile
            total = total + np.einsum("nkpq,p,q->nkpq", np.roll(whole, (top, left), (2, 3)), rows, columns)
    return total


def tiled_diffusers(run, x, size, out_size, overlap=0.25):
    """Each pixel of the result from its tile, and where that is mixed from its neighbours' same pixels."""
    if x.shape[2] <= size and x.shape[3] <= size:
        return run(x)
    step, blend = int(size * (1 - overlap)), int(out_size * overlap)
    kept = out_size - blend
    tops, lefts = range(0, x.shape[2], step), range(0, x.shape[3], step)
    raw = {
        (i, j): run(x[:, :, top : top + size, left : left + size])
        for i, top in enumerate(tops)
        for j, left in enumerate(lefts)
    }

    @cache
    def pixel(i, j, p, q, beside):
        """beside: mixed with its neighbour to the left too, not only with the one above"""
        height, width = raw[i, j].shape[2:]
        if beside:
            n = min(raw[i, j - 1].shape[3], width, blend) if j else 0
            y = pixel(i, j, p, q, False)
            if q >= n:
                return y
            return pixel(i, j - 1, p, raw[i, j - 1].shape[3] - n + q, True) * (1 - q / n) + y * (q / n)
        n = min(raw[i - 1, j].shape[2], height, blend) if i else 0
        y = raw[i, j][:, :, p, q]
        if p >= n:
            return y
        return pixel(i - 1, j, raw[i - 1, j].shape[2] - n + p, q, True) * (1 - p / n) + y * (p / n)

    return np.concatenate(
        [
            np.concatenate(
                [
                    np.stack(
                        [
                            np.stack([pixel(i, j, p, q, True) for q in range(min(kept, raw[i, j].shape[3]))], -1)
                            for p in range(min(kept, raw[i, j].shape[2]))
                        ],
                        -2,
                    )
                    for j in range(len(lefts))
                ],
                3,
            )
            for i in range(len(tops))
        ],
        2,
    )
