"""Formulas written a second time agree with the operations, and name an expression that an engine has wrong."""

import re

import numpy as np
import pytest
from naming import named

from refsd.causes.operation import formulas
from refsd.causes.operation.formulas import changed_formulas
from refsd.golden.mutations import answer
from refsd.golden.operations import OPERATIONS

CASES = [
    case
    for op in OPERATIONS.values()
    for case in op.cases
    if case.op in formulas.NAMES and not case.params.get("antialias") and "tall" not in case.name
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_formula_is_the_operation(case):
    op, inputs = OPERATIONS[case.op], case.realize()
    params = op.complete(inputs, case.params)
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    right = answer(op, inputs, params)
    for family in formulas._families(op.name, params):
        with np.errstate(over="ignore"):
            y = family.made(values, params, family.parts(values, params))
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=2e-4 * np.abs(right).max())


def test_every_text_is_as_before_after_the_search():
    case = next(case for case in CASES if case.op == "rope")
    op, inputs = OPERATIONS["rope"], case.realize()
    params, before = op.complete(inputs, case.params), formulas.turned.__code__
    assert sum(1 for _ in changed_formulas(op, inputs, params)) > 20
    assert formulas.turned.__code__ is before


def _x(inputs):
    return inputs["x"].values().astype(np.float64)


def _erf_of_x(op, inputs, params):
    return _x(inputs) * (1 + formulas.erf(_x(inputs))) / 2


def _bilinear(rows, columns, taps=formulas.two_taps):
    """Interpolate. rows, columns: p, the old size, the new one -> a place"""

    def wrong(op, inputs, params):
        x = _x(inputs)
        sides = zip((rows, columns), x.shape[2:], (params["height"], params["width"]), strict=True)
        parts = [taps(np.asarray(at(np.arange(new), size, new), float)) for at, size, new in sides]
        return formulas._sampled({"x": x}, params, parts)

    return wrong


def _coarse(at):
    index, weights = formulas.two_taps(at)
    return index, np.floor(weights * 32) / 32


def _rounded(at):
    """Convolve with weights for places behind the nearest pixel, not the one before."""
    first = np.rint(at)
    index = np.stack([first - 1, first, first + 1, first + 2])
    near = [(1.25 * d - 2.25) * d * d + 1 for d in (at - first, 1 - at + first)]
    far = [(((d - 5) * d + 8) * d - 4) * -0.75 for d in (1 + at - first, 2 - at + first)]
    return index, np.stack([far[0], *near, far[1]])


def _whole_step(op, inputs, params):
    x = _x(inputs)
    rows, columns = (np.arange(n) * (size // n) for n, size in zip((6, 8), x.shape[2:], strict=True))
    return x[:, :, rows[:, None], columns]


def _rows_twice(op, inputs, params):
    x = _x(inputs)
    return x[:, :, (np.arange(18) // 2 % 6)[:, None], np.arange(15) // 3]


def _same_angle(op, inputs, params):
    """Turn the second channel of a pair by cosines alone."""
    x, axes = _x(inputs), enumerate(params["axes_dim"])
    angles = [inputs["ids"].values()[..., a, None] * params["theta"] ** (-np.arange(0, n, 2) / n) for a, n in axes]
    angle = np.concatenate(angles, -1)[:, :, None]
    first, second = x[..., ::2], x[..., 1::2]
    y = [first * np.cos(angle) - second * np.sin(angle), first * np.cos(angle) + second * np.cos(angle)]
    return np.stack(y, -1).reshape(x.shape)


def _log2(op, inputs, params):
    half = params["dim"] // 2
    f = np.exp(-np.log2(params["max_period"]) * np.arange(half) / (half - params["freq_shift"]))
    angle = params["scale"] * inputs["t"].values().astype(np.float64)[:, None] * f
    return np.concatenate([np.cos(angle), np.sin(angle)], 1)


def _half_up(op, inputs, params):
    x = _x(inputs)
    sides = zip((params["height"], params["width"]), x.shape[2:], strict=True)
    rows, columns = (np.minimum((np.arange(n) * size / n + 0.5).astype(int), size - 1) for n, size in sides)
    return x[:, :, rows[:, None], columns]


def _rational_erf(op, inputs, params):
    x = _x(inputs)
    a = np.abs(x) / np.sqrt(2)
    erf = 1 - (1 + 0.278393 * a + 0.230389 * a**2 + 0.000972 * a**3 + 0.078108 * a**4) ** -4
    return x * (1 + np.sign(x) * erf) / 2


def _steep(op, inputs, params):
    return _bilinear(_CORNERS, _CORNERS, lambda at: formulas.four_taps(at, -0.6))(op, inputs, params)


def _positions_in_float16(op, inputs, params):
    """Positions beyond 65504 are infinite."""
    with np.errstate(all="ignore"):
        ids = inputs["ids"].values().astype(np.float16).astype(np.float64)
        (n,) = params["axes_dim"]
        angle = (ids * params["theta"] ** (-np.arange(0, n, 2) / n))[:, :, None]
        first, second = _x(inputs)[..., ::2], _x(inputs)[..., 1::2]
        c, s = np.cos(angle), np.sin(angle)
    return np.stack([first * c - second * s, first * s + second * c], -1).reshape(inputs["x"].shape)


_HALF, _CORNERS = formulas.place, formulas.place_of_corners
_DOWN = "n2-c3-h12-w9-to5x7"
_BUGS = {
    "erf of x": ("gelu/f32/bend-x33x77", _erf_of_x, r"/ sqrt\(2\) left out"),
    "a whole step of nearest": (
        "resize_nearest/f32/down-n2-c3-h16-w20-to6x8",
        _whole_step,
        "step from pixel to pixel is size // new, not size / new",
    ),
    "columns by another corner": (
        f"resize_bilinear/f32/corners-down-{_DOWN}",
        _bilinear(_CORNERS, lambda p, size, new: p * (size / (new - 1))),
        "- 1 left out, in p .*, columns alone",
    ),
    "weights of five bits": (
        f"resize_bilinear/f32/down-{_DOWN}",
        _bilinear(_HALF, _HALF, _coarse),
        "weights cut to 1/32",
    ),
    "the nearest pixel is the first": (
        f"resize_bicubic/f32/down-{_DOWN}",
        _bilinear(_HALF, _HALF, _rounded),
        r"rint\(at\) in place of floor\(at\)",
    ),
    "a factor of two for rows": (
        "upsample_nearest/f32/x3-n1-c4-h6-w5",
        _rows_twice,
        "entries of x along axis 2 are read one for each 2 along axis 2, modulo 6",
    ),
    "cosines alone": (
        "rope/f32/neighbours-n2-l33-h3-d20",
        _same_angle,
        "cos in place of sin, in new_second = first",
    ),
    "half up, as Java's Math.round": (
        "resize_nearest/f32/up-n2-c3-h5-w7-to8x16",
        _half_up,
        r"floor\(p \* size / new \+ 0.5\) in place of floor\(p \* size / new\)",
    ),
    "a rational erf": ("gelu/f32/bend-x33x77", _rational_erf, "erf is approximate: Abramowitz & Stegun 7.1.27"),
    "another cubic": (
        "resize_bicubic/f32/corners-up-n2-c3-h5-w7-to13x11",
        _steep,
        "a is -0.6, not -0.75",
    ),
    "positions in float16": (
        "rope/f32/far-n1-l9-h2-d64",
        _positions_in_float16,
        "positions rounded to float16",
    ),
    "a logarithm of base two": ("timestep_embedding/f32/unet-d320", _log2, "log2.* in place of log"),
}


@pytest.mark.parametrize("bug", _BUGS)
def test_a_wrong_expression_is_quoted(bug):
    case, wrong, says = _BUGS[bug]
    causes = named(case, wrong)
    assert causes and re.search(says, causes[0]), causes
