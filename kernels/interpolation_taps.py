"""Compute which old pixels make up a new pixel of an axis, and their weights, for each interpolation.

The position of new pixel p (of P) on the old axis (of H) is (p + 1/2) H/P - 1/2 with half-pixel centres
(align_corners=False), or p (H - 1)/(P - 1) with aligned corners (align_corners=True). With antialiasing, shrinking
widens the filter, so that every old pixel contributes. A resize by a factor f that does not divide the size so that
H f is whole has P = floor(H f), and a step of 1/f, not H/P, from pixel to pixel.
"""

from typing import NamedTuple

import numpy as np


class Taps(NamedTuple):
    """The taps of one axis.

    index:  [P, T], in [0, H)
    weight: [P, T], float64; each row sums to 1
    """

    index: np.ndarray
    weight: np.ndarray


def linear(size, new, step=None):
    """Weigh the two nearest pixels by 1 - t and t, with half-pixel centres; the border pixel continues outside."""
    return _linear(size, _half_pixel(size, new, step))


def linear_corners(size, new):
    """Weigh the two nearest pixels by 1 - t and t, with aligned corners."""
    return _linear(size, _corners(size, new))


def cubic(size, new, step=None):
    """Weigh the four nearest by Keys' cubic, a = -3/4, half-pixel centres. Source: Keys 1981, eq. 4; torch."""
    return _cubic(size, _half_pixel(size, new, step))


def cubic_corners(size, new):
    """Weigh the four nearest pixels by Keys' cubic with a = -3/4, aligned corners."""
    return _cubic(size, _corners(size, new))


def triangle(size, new, step=None):
    """Weigh pixels by a triangle of the new pixels' distance. Source: Pillow's BILINEAR; torch, antialias."""
    return _filtered(size, new, lambda t: np.maximum(1 - np.abs(t), 0), 1.0, step)


def wide_cubic(size, new, step=None):
    """Weigh by Keys' cubic, a = -1/2, scaled to the new pixels' distance. Source: Pillow's BICUBIC; torch."""
    return _filtered(size, new, lambda t: keys(t, -0.5), 2.0, step)


def lanczos(size, new):
    """Weigh the nearest pixels by sinc(t) sinc(t/3), |t| < 3, normalised; the border pixel continues outside.

    Half-pixel centres. Shrinking does not widen it, unlike Pillow's LANCZOS.
    Source: Duchon 1979; stable-diffusion.cpp tensor.hpp, make_interpolate_contributors.
    """
    at = _half_pixel(size, new)
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(-2, 4)
    t = index - at[:, None]
    weight = np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0.0)
    return Taps(np.clip(index, 0, size - 1), weight / weight.sum(axis=1, keepdims=True))


def keys(t, a):
    """Keys 1981, eq. 4: (a + 2)|t|^3 - (a + 3)|t|^2 + 1 up to 1, a (|t|^3 - 5|t|^2 + 8|t| - 4) up to 2, then 0."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = (((t - 5) * t + 8) * t - 4) * a
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def _half_pixel(size, new, step=None):
    return (np.arange(new) + 0.5) * (step or size / new) - 0.5


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


def _filtered(size, new, shape, reach, step):
    """Compute normalised taps of a filter; pixels outside the picture have weight 0."""
    step = step or size / new
    wide = max(step, 1.0)
    centre = (np.arange(new) + 0.5) * step
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * wide + 0.5).astype(np.int64), size)
    index = first[:, None] + np.arange((last - first).max())
    weight = shape((index - centre[:, None] + 0.5) / wide) * (index < last[:, None])
    return Taps(np.minimum(index, size - 1), weight / weight.sum(axis=1, keepdims=True))
