"""Bounds of activations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.golden.bounds.run import FUNCTION, Run, movement
from refsd.golden.numerics import DTYPES
from refsd.golden.rounding import Bound, Terms, floor, moved, moved_by_type, unit

# erf's absolute error in units of u: Abramowitz & Stegun 7.1.26, which torch evaluates in float32, is 2.5 u off by
# itself, and was measured 8 u off.
_ERF = 12.0


def _activation(slope: float, relative: Callable[[np.ndarray], Any], near: Callable[[np.ndarray], Any]):
    """y = x g(x): |y'| dx + u (relative(x) |y| + near(x)), with |y'| <= slope.

    relative: what g's argument and its value lose, relative to y, in units of u
    near:     what g loses near 0, where 1 + erf or 1 + tanh cancel, times |x|, in units of u
    A table (numerics.gelu) rounds x before and y after.
    """

    def bound(run: Run) -> Bound:
        return run.rounded(
            _activation_terms(run, run.inputs["x"], run.moved("x"), run.truth, slope, relative, near)
        )

    return bound


def _activation_terms(run: Run, x, dx, y, slope, relative, near) -> Terms:
    table = run.numerics.gelu if slope > _SILU_SLOPE else None
    dx = dx + moved_by_type(x, table)
    terms = Terms().add(slope * dx)
    noise = run.u * (FUNCTION * np.abs(y) + relative(x) * np.abs(y) + near(x))
    terms.add(noise, noise / FUNCTION)
    if table is not None:
        f16 = DTYPES["float16"]
        terms.add(unit(f16) * np.abs(y) + float(2.0**-25), np.abs(moved(y, f16)) / math.sqrt(3))
    return terms


_SILU_SLOPE = 1.1

_GELU = (
    1.13,
    lambda x: 2.0,
    lambda x: _ERF * np.abs(x) / 2,
)

_GELU_TANH = (
    1.13,
    lambda x: 2.0,
    lambda x: (FUNCTION + 4 * _slope_of_tanh(x)) * np.abs(x) / 2,
)

# In float32 exp(-x) overflows below -88.7, and x / inf is 0 where the truth is not yet: it is |x| 2^-128 at most.
_OVERFLOW = 2.0**-104

# exp(-a x): the product's rounding moves the exponent by u |a x|, felt where the sigmoid is not yet 1.
_SILU = (_SILU_SLOPE, lambda x: np.where(x < 0, 1.0, 0.0) * 2, lambda x: _OVERFLOW * np.abs(x))

_QUICK_GELU = (
    1.12,
    lambda x: 2 + 1.702 * np.abs(x) / (1 + np.exp(np.clip(1.702 * x, -60, 60))),
    lambda x: _OVERFLOW * np.abs(x),
)


def _slope_of_tanh(x):
    a = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.abs(a) / np.cosh(np.clip(a, -300, 300)) ** 2


def _geglu(run: Run) -> Bound:
    """y = v gelu(g): dv |gelu(g)| + |v| dgelu, and the product's rounding."""
    v, g = np.split(run.inputs["x"], 2, axis=-1)
    dv, dg = np.split(run.moved("x"), 2, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gelu = np.where(v != 0, run.truth / v, 0.0)
    inner = _activation_terms(run, g, dg, gelu, *_GELU)
    inner.add(unit(run.numerics.storage_dtype) * np.abs(gelu))
    terms = Terms().add(np.abs(v) * inner.limit, np.abs(v) * np.sqrt(inner.square)).add(dv * np.abs(gelu))
    return run.rounded(terms, extra=floor(run.numerics.storage_dtype) * np.abs(v))


def _sigmoid(run: Run) -> Bound:
    """|y'| = y (1 - y) <= 1/4; exp(-x) and the quotient 4 u + 2 u"""
    noise = run.u * (FUNCTION + 2) * np.abs(run.truth)
    return run.rounded(Terms().add(run.moved("x") / 4).add(noise, noise / FUNCTION))


def _tanh(run: Run) -> Bound:
    """|y'| <= 1; from an exp near 0, where 1 cancels, a library's tanh keeps its digits all the same"""
    noise = run.u * 2 * FUNCTION * np.abs(run.truth)
    return run.rounded(Terms().add(run.moved("x")).add(noise, noise / FUNCTION))


def _leaky_relu(run: Run) -> Bound:
    """slope x below zero: the slope and the product are rounded"""
    below = run.inputs["x"] < 0
    terms = Terms().add(run.moved("x") * np.where(below, abs(run.params["slope"]), 1.0))
    return run.rounded(terms.add(2 * run.u * np.abs(run.truth) * below))


def _gated(run: Run, gate, dgate, value, dvalue, activated, kind) -> Bound:
    """y = v a(g): |v| da + dv |a|, and the product's rounding"""
    inner = _activation_terms(run, gate, dgate, activated, *kind)
    inner.add((unit(run.numerics.storage_dtype) + run.u) * np.abs(activated))
    terms = Terms().add(np.abs(value) * inner.limit, np.abs(value) * np.sqrt(inner.square))
    terms.add(dvalue * np.abs(activated))
    return run.rounded(terms, extra=floor(run.numerics.storage_dtype) * np.abs(value))


def _swiglu(run: Run) -> Bound:
    (g, v), (dg, dv) = (np.split(t, 2, axis=-1) for t in (run.inputs["x"], run.moved("x")))
    if run.params["second_gates"]:
        g, v, dg, dv = v, g, dv, dg
    return _gated(run, g, dg, v, dv, g / (1 + np.exp(-g)), _SILU)


def _swiglu_oai(run: Run) -> Bound:
    """The gate's slope is that of x sigmoid(x); alpha g loses what quick_gelu's does, v + 1 u of itself."""
    alpha, limit = run.params["alpha"], run.params["limit"]
    g, v = np.minimum(run.inputs["gate"], limit), np.clip(run.inputs["value"], -limit, limit) + 1
    kind = (1.1, lambda x: 2 + 2 * alpha * np.abs(x) / (1 + np.exp(np.clip(alpha * x, -60, 60))), _SILU[2])
    dv = run.moved("value") + run.u * np.abs(v)
    return _gated(run, g, run.moved("gate"), v, dv, g / (1 + np.exp(-alpha * g)), kind)


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "silu": _activation(*_SILU),
    "gelu": _activation(*_GELU),
    "gelu_tanh": _activation(*_GELU_TANH),
    "quick_gelu": _activation(*_QUICK_GELU),
    "geglu": _geglu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": movement("x"),
    "leaky_relu": _leaky_relu,
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
