"""Normalisation of each pixel's channels by the root of their mean square."""

import math

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, F16_INPUT, NO_WEIGHT, Wrong, answer, other_output
from refsd.golden.operation import Mutant, Operation, optional, values
from refsd.golden.operations.l2_norm import unit_rows
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound

_PIXELS = "[N, C, ...]"


def _run(a, inputs, params):
    eps = a.numerics.compute_dtype.type(params["eps"])  # all short pixels share this rounding, as in l2_norm
    return a.rms_norm_channels(values(a, inputs["x"]), optional(a, inputs, "weight"), float(eps))


def _bound(run: Run) -> Bound:
    """y = e sqrt(C) w, e = x / max(|x|, eps): |w| sqrt(C) de + |e| sqrt(C) dw + 3 u |y|

    An engine that composes it from several operations stores e, and e sqrt(C).
    """
    x, dx = (np.moveaxis(t, 1, -1) for t in (run.inputs["x"], run.moved("x")))
    w, dw, root = np.abs(run.inputs["weight"]), run.moved("weight"), math.sqrt(x.shape[-1])
    terms, unit = unit_rows(run, x, dx)
    terms.limit, terms.square = terms.limit * root * w, terms.square * (root * w) ** 2
    terms.add(root * w * run.between(unit)).add(w * run.between(root * unit))
    terms.add(unit * root * dw).add(3 * run.u * unit * root * w)
    terms.limit, terms.square = (
        np.moveaxis(np.broadcast_to(t, x.shape), -1, 1) for t in (terms.limit, terms.square)
    )
    return run.rounded(terms)


def _scaled_by(factor, axis: int | tuple[int, ...] | None = 1) -> Wrong:
    """Multiply x and the weight by a function of the sum of squares over `axis`, its number of terms and eps.

    axis: None: all pixels of a channel
    """

    def wrong(op, inputs, params):
        x, w = inputs["x"].values().astype(np.float32), inputs["weight"].values().astype(np.float32)
        over = tuple(range(2, x.ndim)) if axis is None else axis
        n = x.size // np.sum(x, axis=over).size
        by = factor((x * x).sum(axis=over, keepdims=True), n, np.float32(params["eps"]))
        return x * by * w.reshape(-1, *[1] * (x.ndim - 2))

    return wrong


def _unit(square, n, eps):
    return np.float32(math.sqrt(n)) / np.maximum(np.sqrt(square), eps)


def _squares_in_float16(op, inputs, params):
    x, w = inputs["x"].values().astype(np.float32), inputs["weight"].values().astype(np.float32)
    half = x.astype(np.float16)
    square = np.add.accumulate(half * half, axis=1, dtype=np.float16)[:, -1:].astype(np.float32)
    return x * _unit(square, x.shape[1], np.float32(params["eps"])) * w.reshape(-1, *[1] * (x.ndim - 2))


def _root_of_pixels(op, inputs, params):
    x = inputs["x"].values()
    return answer(op, inputs, params) * np.float32(math.sqrt(math.prod(x.shape[2:]) / x.shape[1]))


def _case(label: str, x: tuple[int, ...], eps=1e-12, exponent=-15) -> Case:
    inputs = {"x": Recipe(x, exponent=exponent), "weight": Recipe(x[1:2], offset=1.0)}
    name = f"rms_norm_channels/f32/{label}-x{'x'.join(map(str, x))}"
    return Case(name, "rms_norm_channels", inputs, {"eps": eps})


RMS_NORM_CHANNELS = Operation(
    "rms_norm_channels",
    "Scale the channels of each pixel to length sqrt(C), a length below eps taken as eps, times the weight.",
    family="norms",
    inputs={"x": _PIXELS, "weight": "[C]"},
    output=_PIXELS,
    params={"eps": 1e-12},
    channel=1,
    run=_run,
    bound=_bound,
    mutants=(
        *EPS,
        NO_WEIGHT,
        BATCH,
        F16_INPUT,
        Mutant("factor sqrt(C) missing", _scaled_by(lambda square, n, eps: 1 / np.maximum(np.sqrt(square), eps))),
        Mutant(
            "eps added to the mean square, as in rms_norm",
            _scaled_by(lambda square, n, eps: 1 / np.sqrt(square / n + eps)),
        ),
        Mutant("factor sqrt of the number of pixels, not of channels", _root_of_pixels),
        Mutant("normalised over the last axis", _scaled_by(_unit, -1)),
        Mutant("normalised over the pixels of each channel", _scaled_by(_unit, None)),
        Mutant("squares summed in float16", _squares_in_float16),
        Mutant("the mean subtracted", other_output(lambda y: y - y.mean(axis=1, keepdims=True))),
    ),
    cases=(
        _case("picture", (2, 33, 7, 5)),
        _case("video", (2, 20, 3, 5, 4)),
        # Squares beyond float16's range.
        _case("loud", (1, 132, 4, 3), exponent=-8),
        _case("short", (2, 33, 4, 5), 1e-3, exponent=-32),
        _case("near", (1, 64, 6, 5), 1e-6, exponent=-37),
    ),
)

OPERATIONS = (RMS_NORM_CHANNELS,)
