"""Which pixels of an axis make a new one, and with what weight, in each convention of interpolation.

Where pixel p of the new axis (P) stands on the old (H): half-pixel centres, (p + 1/2) H/P - 1/2
(align_corners=False), or corners on corners, p (H - 1)/(P - 1) (align_corners=True). With antialias, shrinking
widens the filter, so that every old pixel counts.
"""

from typing import NamedTuple

import numpy as np


class Taps(NamedTuple):
    """
    index:  [P, T], in [0, H)
    weight: [P, T], float64; each row's sum is 1
    """

    index: np.ndarray
    weight: np.ndarray


def linear(size, new):
    """1 - t and t for the two nearest, half-pixel centres; outside the picture its border goes on."""
    return _linear(size, _half_pixel(size, new))


def linear_corners(size, new):
    """The same with corners on corners."""
    return _linear(size, _corners(size, new))


def cubic(size, new):
    """Keys' cubic of the four nearest with a = -3/4, half-pixel centres. Source: Keys 1981, eq. 4; torch."""
    return _cubic(size, _half_pixel(size, new))


def cubic_corners(size, new):
    """The same with corners on corners."""
    return _cubic(size, _corners(size, new))


def triangle(size, new):
    """A triangle as wide as the new pixels are apart, normalised. Source: Pillow's BILINEAR; torch, antialias."""
    return _filtered(size, new, lambda t: np.maximum(1 - np.abs(t), 0), 1.0)


def wide_cubic(size, new):
    """Keys' cubic with a = -1/2, as wide as the new pixels are apart. Source: Pillow's BICUBIC; torch."""
    return _filtered(size, new, lambda t: keys(t, -0.5), 2.0)


def keys(t, a):
    """Keys 1981, eq. 4: (a + 2)|t|^3 - (a + 3)|t|^2 + 1 up to 1, a (|t|^3 - 5|t|^2 + 8|t| - 4) up to 2, then 0."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = (((t - 5) * t + 8) * t - 4) * a
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def _half_pixel(size, new):
    return (np.arange(new) + 0.5) * (size / new) - 0.5


def _corners(size, new):
    return np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)


def _linear(size, at):
    at = np.clip(at, 0, size - 1)
    first = np.floor(at).astype(np.int64)
    t = at - first
    return Taps(np.minimum(first[:, None] + [0, 1], size - 1), np.stack([1 - t, t], axis=1))


def _cubic(size, at):
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
    return Taps(np.clip(index, 0, size - 1), keys(index - at[:, None], -0.75))


def _filtered(size, new, shape, reach):
    """What lies outside the picture has no weight."""
    step = size / new
    wide = max(step, 1.0)
    centre = (np.arange(new) + 0.5) * step
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * wide + 0.5).astype(np.int64), size)
    index = first[:, None] + np.arange((last - first).max())
    weight = shape((index - centre[:, None] + 0.5) / wide) * (index < last[:, None])
    return Taps(np.minimum(index, size - 1), weight / weight.sum(axis=1, keepdims=True))
