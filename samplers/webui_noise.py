"""The noise of A1111 and Forge: variation seeds and noise resized from another size."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.samplers.noise import Noise, Philox


class Shortcuts(NamedTuple):
    """Where slerp interpolates in a straight line, by the mean of cos(w) over all columns.

    parallel: from which mean on
    turned:   True if the shares of the two are exchanged there
    apart:    below which mean, too; None: at none
    """

    parallel: float
    turned: bool
    apart: float | None = None


# Source: A1111 modules/rng.py, slerp.
A1111 = Shortcuts(0.9995, turned=True)
# Source: SD.Next modules/processing_helpers.py, slerp.
SDNEXT = Shortcuts(0.9999, turned=False, apart=0.0001)


def slerp(share: float, low: np.ndarray, high: np.ndarray, shortcuts: Shortcuts = A1111) -> np.ndarray:
    """Interpolate spherically, column by column: the angle is that between columns (along axis 1) of each channel.

        sin((1 - share) w) / sin(w) low + sin(share w) / sin(w) high,  cos(w) = low . high / |low| |high|

    low, high: [C, H, W]
    """
    unit = [x / np.sqrt((x * x).sum(axis=1, keepdims=True)) for x in (low, high)]
    dot = (unit[0] * unit[1]).sum(axis=1)
    own, other = low.dtype.type(1 - share), low.dtype.type(share)
    if dot.mean() > shortcuts.parallel:
        return low * other + high * own if shortcuts.turned else low * own + high * other
    if shortcuts.apart is not None and dot.mean() < shortcuts.apart:
        return low * own + high * other
    omega = np.arccos(dot)
    weights = (np.sin((1 - share) * omega) / np.sin(omega), np.sin(share * omega) / np.sin(omega))
    return (weights[0][:, None] * low + weights[1][:, None] * high).astype(low.dtype)


def placed(inner: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Put the noise of another size in the middle of this one's; what does not fit is cut off on both sides.

    inner: [C, h, w], whole: [C, H, W] -> [C, H, W]
    """
    y = whole.copy()
    top, left = (whole.shape[1] - inner.shape[1]) // 2, (whole.shape[2] - inner.shape[2]) // 2
    h, w = (n if d >= 0 else n + 2 * d for n, d in ((inner.shape[1], top), (inner.shape[2], left)))
    from_top, from_left, top, left = max(-top, 0), max(-left, 0), max(top, 0), max(left, 0)
    y[:, top : top + h, left : left + w] = inner[:, from_top : from_top + h, from_left : from_left + w]
    return y


def first_noise(
    seed: int,
    shape: tuple[int, int, int],
    subseed: int | None = None,
    strength: float = 0.0,
    resize_from: tuple[int, int] | None = None,
    rng: Callable[[int], Noise] = Philox,
) -> np.ndarray:
    """Draw one picture's first noise. -> [C, H, W], float32

    shape:       shape of the latent
    subseed:     the variation's seed, mixed in by slerp with `strength`, 0 .. 1
    resize_from: height and width in pixels of another picture; its noise is placed in the middle of this one's
    Source: A1111 modules/rng.py, ImageRNG.first.
    """
    inner = shape if resize_from is None else (shape[0], resize_from[0] // 8, resize_from[1] // 8)
    noise = rng(seed).randn(inner)
    if subseed is not None and strength:
        noise = slerp(strength, noise, rng(subseed).randn(inner))
    return noise if inner == shape else placed(noise, rng(seed).randn(shape))
