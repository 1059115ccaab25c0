"""Known bugs of resampling and pooling."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    IMAGE,
    Mutant,
    Wrong,
    answer,
    other_output,
    other_params,
)
from refsd.kernels import interpolation_taps as taps
from refsd.kernels import pool
from refsd.kernels.interpolate import weighted


def bilinear(op, inputs, params):
    x, factor = inputs["x"].values(), params["factor"]
    y = answer(op, inputs, params)
    return (y + np.roll(np.repeat(np.repeat(x, factor, 2), factor, 3), 1, axis=3)) / 2


def taken_at(place: Callable[[np.ndarray, float], np.ndarray]) -> Wrong:
    """Nearest pixels by another rule: p, H/P -> the old pixel."""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        H, W = x.shape[2:]
        P, Q = params["height"], params["width"]
        rows, columns = (np.clip(place(np.arange(n), s / n).astype(int), 0, s - 1) for n, s in ((P, H), (Q, W)))
        return x[:, :, rows[:, None], columns]

    return wrong


def resized_by(op_name: str) -> Wrong:
    def wrong(op, inputs, params):
        if op == "resize_nearest":
            return answer(op_name, inputs, params)
        plain = {name: params[name] for name in ("height", "width")}
        return answer(op_name, inputs, plain if op_name == "resize_nearest" else params)

    return wrong


def weighted_by(rows, columns) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        return weighted(x, rows(x.shape[2], params["height"]), columns(x.shape[3], params["width"]))

    return wrong


def _steep(size, new):
    """Keys' cubic with the other a."""
    at = (np.arange(new) + 0.5) * size / new - 0.5
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
    return taps.Taps(np.clip(index, 0, size - 1), taps.keys(index - at[:, None], -0.5))


def toggled(name: str) -> Wrong:
    """A flag the other way; the two exclude each other."""

    def wrong(op, inputs, params):
        other = "antialias" if name == "align_corners" else "align_corners"
        return answer(op, inputs, {**params, name: not params[name], other: False})

    return wrong


def stretched(op, inputs, params):
    """Pixel p at p H / P: no half pixels."""
    x = inputs["x"].values()

    def make(size, new):
        at = np.minimum(np.arange(new) * size / new, size - 1)
        first = np.floor(at).astype(np.int64)
        t = at - first
        return taps.Taps(np.minimum(first[:, None] + [0, 1], size - 1), np.stack([1 - t, t], axis=1))

    return weighted(x, make(x.shape[2], params["height"]), make(x.shape[3], params["width"]))


def zeros_compete(op, inputs, params):
    """The padding's zeros may be the largest."""
    x = inputs["x"].values()
    top, left = params["padding"]
    if not top and not left:
        return None
    far = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    return pool.max_pool2d(far, tuple(params["kernel_size"]), tuple(params["stride"]), (0, 0))


def turned(name: str) -> Wrong:
    """Vertical taken for horizontal."""
    return lambda op, i, p: answer(op, i, {**p, name: tuple(p[name])[::-1]}) if len(set(p[name])) > 1 else None


_NEAREST = (
    Mutant("rounded", taken_at(lambda p, step: np.rint(p * step))),
    Mutant("half-pixel centres", taken_at(lambda p, step: np.floor((p + 0.5) * step))),
    Mutant("corners on corners", taken_at(lambda p, step: np.floor(p * (step + (step - 1) / max(len(p) - 1, 1))))),
)

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "upsample_nearest": (
        IMAGE,
        BATCH,
        Mutant("shifted by a pixel", other_output(lambda y: np.roll(y, 1, axis=3))),
        Mutant("averaged with the neighbour", bilinear),
    ),
    "resize_nearest": (*_NEAREST, IMAGE, BATCH, Mutant("bilinear", resized_by("resize_bilinear"))),
    "resize_bilinear": (
        Mutant("the other corners", toggled("align_corners")),
        Mutant("the other antialias", toggled("antialias")),
        Mutant("no half pixels", stretched),
        Mutant("nearest", resized_by("resize_nearest")),
        Mutant("bicubic", resized_by("resize_bicubic")),
        IMAGE,
        BATCH,
    ),
    "resize_bicubic": (
        Mutant("the other corners", toggled("align_corners")),
        Mutant("the other antialias", toggled("antialias")),
        Mutant("a is -1/2", weighted_by(_steep, _steep)),
        Mutant("bilinear", resized_by("resize_bilinear")),
        IMAGE,
        BATCH,
    ),
    "avg_pool2d": (
        Mutant("the other count", other_params(count_include_pad=lambda count: not count)),
        Mutant("window turned", turned("kernel_size")),
        Mutant("stride turned", turned("stride")),
        IMAGE,
        BATCH,
    ),
    "max_pool2d": (
        Mutant("zeros of the border compete", zeros_compete),
        Mutant("window turned", turned("kernel_size")),
        Mutant("stride turned", turned("stride")),
        IMAGE,
        BATCH,
    ),
}
