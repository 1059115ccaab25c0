"""Elementwise activation functions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from refsd.golden.bounds import FUNCTION, Run, movement
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, other_input, other_params, other_run, to_float16
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, floor, moved, moved_by_type, unit
from refsd.kernels.relu import leaky_relu, relu
from refsd.kernels.tanh import tanh
from refsd.numerics.profiles import DTYPES
from refsd.numerics.rational_logistic import RATIONAL_ERROR
from refsd.numerics.shader_functions import QUOTIENT, exp_error


def _silu(a, inputs, params):
    return a.silu(values(a, inputs["x"]))


def _gelu(a, inputs, params):
    return a.gelu(values(a, inputs["x"]))


def _gelu_tanh_of(cube, a, inputs, params):
    x = values(a, inputs["x"]).astype(np.float64)
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + cube * x**3)))


def _gelu_tanh(a, inputs, params):
    return a.gelu(values(a, inputs["x"]), "tanh")


def _quick_gelu(a, inputs, params):
    return a.quick_gelu(values(a, inputs["x"]))


def _sigmoid(a, inputs, params):
    return a.sigmoid(values(a, inputs["x"]))


def _kernel(kernel):
    return lambda a, inputs, params: a.apply(kernel, values(a, inputs["x"]), **params)


# erf's absolute error in units of u: Abramowitz & Stegun 7.1.26, which torch evaluates in float32, is 2.5 u off by
# itself, and was measured 8 u off.
_ERF = 12.0

_SILU_SLOPE = 1.1


def activation_bound(slope: float, relative: Callable[[np.ndarray], Any], near: Callable[[np.ndarray], Any]):
    """Return the bound of y = x g(x): |y'| dx + u (relative(x) |y| + near(x)), with |y'| <= slope.

    relative: the error of g's argument and of its value, relative to y, in units of u
    near:     the error of g near 0, where 1 + erf or 1 + tanh cancel, times |x|, in units of u

    An engine that looks GELU up in a table (numerics.gelu) rounds x before and y after.
    """

    def bound(run: Run) -> Bound:
        return run.rounded(activation_terms(run, run.inputs["x"], run.moved("x"), run.truth, slope, relative, near))

    return bound


def activation_terms(run: Run, x, dx, y, slope, relative, near) -> Terms:
    table = run.numerics.gelu if slope > _SILU_SLOPE else None
    dx = dx + moved_by_type(x, table)
    terms = Terms().add(slope * dx)
    noise = run.u * (FUNCTION * np.abs(y) + relative(x) * np.abs(y) + near(x))
    if run.numerics.shader and slope == _SILU_SLOPE:
        noise = noise + of_shader(run.u, x, y)
    terms.add(noise, noise / FUNCTION)
    if table is not None:
        f16 = DTYPES["float16"]
        terms.add(unit(f16) * np.abs(y) + float(2.0**-25), np.abs(moved(y, f16)) / math.sqrt(3))
    return terms


def _slope_of_tanh(x):
    a = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.abs(a) / np.cosh(np.clip(a, -300, 300)) ** 2


GELU_ERROR = (
    1.13,
    lambda x: 2.0,
    lambda x: _ERF * np.abs(x) / 2,
)

_GELU_TANH_ERROR = (
    1.13,
    lambda x: 2.0,
    lambda x: (FUNCTION + 4 * _slope_of_tanh(x)) * np.abs(x) / 2,
)

# In float32 an exp near the smallest normal number may be flushed to 0 before x multiplies it, and 1 / exp(-x) is 0
# where exp(-x) overflows. A library that computes 2^k as 2 2^(k-1), k = x / ln 2 rounded, as OpenVINO does, flushes
# all below 2^-125.5. The error is |x| 2^-125.5 at most, here in units of u.
_FLUSHED = 2.0**-125.5 * 2.0**24

# exp(-a x): the product's rounding moves the exponent by u |a x|, which counts where the sigmoid is not yet 1.
SILU_ERROR = (_SILU_SLOPE, lambda x: np.where(x < 0, 1.0, 0.0) * 2, lambda x: _FLUSHED * np.abs(x))

# The product 1.702 x rounds by u, and 1.702 in float32 is 0.22 u off.
_OF_CONSTANT = 1.22

_QUICK_GELU_ERROR = (
    1.12,
    lambda x: 2 + _OF_CONSTANT * 1.702 * np.abs(x) / (1 + np.exp(np.clip(1.702 * x, -60, 60))),
    lambda x: _FLUSHED * np.abs(x),
)


def rational_sigmoid(run: Run, x):
    """Return the error of x s where s is a sigmoid by polynomials, whose error is absolute."""
    return RATIONAL_ERROR * run.u * np.abs(x) if run.numerics.logistic else np.zeros_like(x)


def stored_sigmoid(run: Run, x, alpha: float):
    """Return the error of x s where torch stores a = alpha x, and then the sigmoid s of it.

    |ln s(a + da) - ln s(a)| <= da / (1 + exp(a - da)); plus rational_sigmoid
    """
    a = alpha * x
    da = run.between(np.abs(a))
    s = 1 / (1 + np.exp(np.clip(-a, -700, 700)))
    s_moved = s * np.expm1(da / (1 + np.exp(np.clip(a - da, -700, 700))))
    return np.abs(x) * (s_moved + run.between(s + s_moved)) + rational_sigmoid(run, x)


def _silu_bound(run: Run) -> Bound:
    """Add rational_sigmoid to activation_terms."""
    x = run.inputs["x"]
    terms = activation_terms(run, x, run.moved("x"), run.truth, *SILU_ERROR)
    return run.rounded(terms.add(rational_sigmoid(run, x)))


def _quick_gelu_bound(run: Run) -> Bound:
    """Add stored_sigmoid to activation_terms."""
    x = run.inputs["x"]
    terms = activation_terms(run, x, run.moved("x"), run.truth, *_QUICK_GELU_ERROR)
    return run.rounded(terms.add(stored_sigmoid(run, x, 1.702)))


def _sigmoid_bound(run: Run) -> Bound:
    """|y'| = y (1 - y) <= 1/4; 4 u of exp(-x) and 2 u of the quotient; plus rational_sigmoid."""
    noise = run.u * (FUNCTION + 2) * np.abs(run.truth)
    if run.numerics.shader:
        noise = noise + of_shader(run.u, run.inputs["x"], run.truth)
    terms = Terms().add(run.moved("x") / 4).add(noise, noise / FUNCTION)
    return run.rounded(terms.add(rational_sigmoid(run, np.ones_like(run.truth))))


def _tanh_bound(run: Run) -> Bound:
    """|y'| <= 1; near 0, where a formula with exp cancels, a library's tanh keeps its relative precision.

    A shader's y = 1 - q, q = 2 / (e + 1), does not: q's quotient and sum, and e's error times (1 - y^2) / 2.
    """
    noise = run.u * 2 * FUNCTION * np.abs(run.truth)
    if run.numerics.shader:
        x, y = run.inputs["x"], run.truth
        noise = noise + run.u * ((QUOTIENT + 1) * (1 - y) + exp_error(2 * x) * (1 - y**2) / 2)
    return run.rounded(Terms().add(run.moved("x")).add(noise, noise / FUNCTION))


def _leaky_relu_bound(run: Run) -> Bound:
    """Below zero y = slope x: the slope and the product are rounded."""
    below = run.inputs["x"] < 0
    terms = Terms().add(run.moved("x") * np.where(below, abs(run.params["slope"]), 1.0))
    return run.rounded(terms.add(2 * run.u * np.abs(run.truth) * below))


def of_shader(u: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error of y = f / (1 + e), e = exp(-x), in a shader: its quotient's, and e / (1 + e) times e's."""
    e = np.exp(np.clip(-x, -700, 700))
    return u * (QUOTIENT + exp_error(x) * e / (1 + e)) * np.abs(y)


def gated_bound(run: Run, gate, dgate, value, dvalue, activated, kind, stored=0.0) -> Bound:
    """Bound y = v a(g): |v| da + dv |a|, and the product's rounding. stored: error by roundings inside a(g)"""
    inner = activation_terms(run, gate, dgate, activated, *kind).add(stored)
    inner.add((unit(run.numerics.storage_dtype) + run.u) * np.abs(activated))
    terms = Terms().add(np.abs(value) * inner.limit, np.abs(value) * np.sqrt(inner.square))
    terms.add(dvalue * np.abs(activated))
    return run.rounded(terms, extra=floor(run.numerics.storage_dtype) * np.abs(value))


def sigmoid_gelu(x: np.ndarray, a: float) -> np.ndarray:
    return x / (1 + np.exp(np.float32(-a) * x))


def function_of_x(f: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    return lambda op, inputs, params: f(inputs["x"].values().astype(np.float32))


_F16 = Mutant("input through float16", other_input("x", to_float16))


def _cases(op: str) -> tuple[Case, ...]:
    """Make cases where the function bends, and far out, where the kinds of GELU differ."""
    return (
        Case(f"{op}/f32/bend-x33x77", op, {"x": Recipe((33, 77), exponent=-14)}),
        Case(f"{op}/f32/wide-x2x320", op, {"x": Recipe((2, 320), exponent=-11)}),
    )


def _far(op: str) -> Case:
    """Make a case of numbers up to 200, whose exponential float32 cannot hold."""
    return Case(f"{op}/f32/far-x20x77", op, {"x": Recipe((20, 77), exponent=-9)})


def _farther(op: str) -> Case:
    """Make a case of numbers up to 6400, whose exponential float64 cannot hold, either."""
    return Case(f"{op}/f32/farther-x9x7", op, {"x": Recipe((9, 7), exponent=-4)})


def overflowing(
    of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    inner: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    which: str = "exp(x)",
) -> tuple[Mutant[Wrong], Mutant[Wrong]]:
    """of: x, exp(inner(x)) -> the function by inf / inf; in float32, and in float64"""

    def wrong(x, dtype):
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
            return of(x, np.exp(inner(x))).astype(np.float32)

    name = f"NaN where {which} overflows: the quotient of two infinities"
    return (
        Mutant(name, function_of_x(partial(wrong, dtype=np.float32))),
        Mutant(f"{name}, in float64", function_of_x(partial(wrong, dtype=np.float64))),
    )


SILU_OVERFLOWING = overflowing(lambda x, e: x * e / (1 + e))[0]

_activation = partial(Operation, family="activations", inputs={"x": "[...]"}, output="[...]")

SILU = _activation(
    "silu",
    "x * sigmoid(x)",
    run=_silu,
    bound=_silu_bound,
    mutants=(
        Mutant("x sigmoid(1.702 x)", other_run(_quick_gelu)),
        Mutant("gelu", other_run(_gelu)),
        SILU_OVERFLOWING,
    ),
    cases=(*_cases("silu"), _far("silu")),
)

GELU = _activation(
    "gelu",
    "x * Phi(x), Phi by erf",
    run=_gelu,
    bound=activation_bound(*GELU_ERROR),
    mutants=(
        Mutant("tanh for erf", other_run(_gelu_tanh)),
        Mutant("quick GELU for erf", other_run(_quick_gelu)),
        _F16,
    ),
    cases=_cases("gelu"),
)

GELU_TANH = _activation(
    "gelu_tanh",
    "GELU by its tanh approximation",
    run=_gelu_tanh,
    bound=activation_bound(*_GELU_TANH_ERROR),
    mutants=(
        Mutant("erf for tanh", other_run(_gelu)),
        Mutant("quick GELU for tanh", other_run(_quick_gelu)),
        *(
            Mutant(f"the cube's factor is {of}, not 0.044715", other_run(partial(_gelu_tanh_of, of)))
            for of in (0.44715, 0.0044715)
        ),
        *overflowing(
            lambda x, e: x / 2 * (1 + (e - 1) / (e + 1)),
            lambda x: np.float32(math.sqrt(8 / math.pi)) * (x + np.float32(0.044715) * x**3),
        ),
        *overflowing(
            lambda x, e: x / 2 * (1 + (e - 1 / e) / (e + 1 / e)),
            lambda x: np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3),
            "exp(x) or exp(-x)",
        ),
        _F16,
    ),
    cases=(*_cases("gelu_tanh"), _far("gelu_tanh"), _farther("gelu_tanh")),
)

QUICK_GELU = _activation(
    "quick_gelu",
    "x * sigmoid(1.702 x)",
    run=_quick_gelu,
    bound=_quick_gelu_bound,
    mutants=(
        Mutant("SiLU", other_run(_silu)),
        Mutant("erf GELU", other_run(_gelu)),
        Mutant("1.7 for 1.702", lambda op, i, p: sigmoid_gelu(i["x"].values(), 1.7)),
        overflowing(lambda x, e: x * e / (1 + e), lambda x: np.float32(1.702) * x)[0],
    ),
    cases=(*_cases("quick_gelu"), _far("quick_gelu")),
)

SIGMOID = _activation(
    "sigmoid",
    "1 / (1 + exp(-x))",
    run=_sigmoid,
    bound=_sigmoid_bound,
    mutants=(
        Mutant("of 2x", function_of_x(lambda x: 1 / (1 + np.exp(-2 * x)))),
        Mutant("hard", function_of_x(lambda x: np.clip(x / 6 + np.float32(0.5), 0, 1))),
        overflowing(lambda x, e: e / (1 + e))[0],
        _F16,
    ),
    cases=(*_cases("sigmoid"), _far("sigmoid")),
)

TANH = _activation(
    "tanh",
    "tanh(x)",
    run=_kernel(tanh),
    bound=_tanh_bound,
    mutants=(
        Mutant("hard", function_of_x(lambda x: np.clip(x, -1, 1))),
        Mutant("of 2x", function_of_x(lambda x: np.tanh(2 * x))),
        Mutant("a rational function", function_of_x(lambda x: x * (27 + x * x) / (27 + 9 * x * x))),
        *overflowing(lambda x, e: (e - 1) / (e + 1), lambda x: 2 * x),
        *overflowing(lambda x, e: (e - 1 / e) / (e + 1 / e), which="exp(x) or exp(-x)"),
        _F16,
    ),
    cases=(*_cases("tanh"), _far("tanh"), _farther("tanh")),
)

RELU = _activation(
    "relu",
    "max(x, 0)",
    run=_kernel(relu),
    bound=movement,
    mutants=(
        Mutant("leaky", function_of_x(lambda x: np.where(x > 0, x, x / 100))),
        Mutant("cut at 6", function_of_x(lambda x: np.clip(x, 0, 6))),
        Mutant("absolute value", function_of_x(np.abs)),
        _F16,
    ),
    cases=_cases("relu"),
)

LEAKY_RELU = _activation(
    "leaky_relu",
    "x, or slope * x below zero",
    params={"slope": 0.2},
    run=_kernel(leaky_relu),
    bound=_leaky_relu_bound,
    mutants=(
        Mutant("slope 0.01 always", other_params(slope=lambda s: 0.01)),
        Mutant("slope half as large", other_params(slope=lambda s: s / 2)),
        Mutant("not leaky", other_params(slope=lambda s: 0.0)),
        _F16,
    ),
    cases=(
        *_cases("leaky_relu"),
        Case("leaky_relu/f32/shallow-x7x20", "leaky_relu", {"x": Recipe((7, 20))}, {"slope": 0.01}),
    ),
)

OPERATIONS = (SILU, GELU, GELU_TANH, QUICK_GELU, SIGMOID, TANH, RELU, LEAKY_RELU)
