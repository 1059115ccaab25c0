"""Bounds of resampling and pooling."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import Run, movement
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels import interpolation_taps as taps
from refsd.kernels import pool
from refsd.kernels.interpolate import weighted

# A weight moves by this much at most where its pixel moves by one: the steepest slope of its curve.
_LINEAR, _CUBIC = 1.0, 1.6


def _resize(conventions: dict[tuple[bool, bool], Callable], slope: float) -> Callable[[Run], Bound]:
    """y = sum w x over T taps an axis.

    A place (p + 1/2) H/P - 1/2 is some 4 roundings of numbers up to H; a weight loses slope times that and 6 u of
    itself: sum |w| dx + dw (sum |x| of one axis' taps, weighted along the other) + gamma(2 T + 6) sum |w| |x|.
    Normalised weights lose their sum's share too, which is no more.
    """

    def bound(run: Run) -> Bound:
        make = conventions[run.params["align_corners"], run.params["antialias"]]
        x, dx = np.abs(run.inputs["x"]), run.moved("x")
        rows, columns = make(x.shape[2], run.params["height"]), make(x.shape[3], run.params["width"])
        heavy = [taps.Taps(t.index, np.abs(t.weight)) for t in (rows, columns)]
        lost = [_lost(t, run.u, slope, size) for t, size in zip((rows, columns), x.shape[2:], strict=True)]
        terms = Terms().add(weighted(np.ascontiguousarray(dx), *heavy))
        terms.add(weighted(x, lost[0], heavy[1])).add(weighted(x, heavy[0], lost[1]))
        T = rows.index.shape[1] * columns.index.shape[1]
        return run.rounded(terms.add(gamma(2 * T + 6, run.u) * weighted(x, *heavy)))

    return bound


def _lost(t: taps.Taps, u: float, slope: float, size: int) -> taps.Taps:
    """What each weight may lose; twice where weights are divided by their sum."""
    return taps.Taps(t.index, 2 * slope * 4 * u * (size + 1) * np.ones_like(t.weight))


def _avg_pool2d(run: Run) -> Bound:
    """The mean of |x| times gamma of the window's size, the mean of dx."""
    mean = pool.avg_pool2d if run.params["count_include_pad"] else pool.avg_pool2d_inside
    window = [tuple(run.params[name]) for name in ("kernel_size", "stride", "padding")]
    n = window[0][0] * window[0][1]
    x, dx = np.abs(run.inputs["x"]), np.ascontiguousarray(run.moved("x"))
    return run.rounded(Terms().add(mean(dx, *window)).add(gamma(n + 1, run.u) * mean(x, *window)))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "upsample_nearest": movement("x"),
    "resize_nearest": movement("x"),
    "resize_bilinear": _resize(
        {(False, False): taps.linear, (True, False): taps.linear_corners, (False, True): taps.triangle}, _LINEAR
    ),
    "resize_bicubic": _resize(
        {(False, False): taps.cubic, (True, False): taps.cubic_corners, (False, True): taps.wide_cubic}, _CUBIC
    ),
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": movement("x"),
}
