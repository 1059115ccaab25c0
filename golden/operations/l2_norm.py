"""Scaling of rows to length one."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, Wrong
from refsd.golden.operation import ROWS, Mutant, Operation, values
from refsd.golden.operations.normalisation import SQUARES_IN_FLOAT16
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma


def _run(a, inputs, params):
    eps = a.numerics.compute_dtype.type(params["eps"])  # all short rows share this rounding: errors do not cancel
    return a.l2_norm(values(a, inputs["x"]), float(eps))


def _bound(run: Run) -> Bound:
    """y = x / m, m = max(|x|, eps): dx / m + |y| dm / m + 2 u |y|, dm <= |dx| + (gamma(n + 1) / 2 + u) |x|

    An engine that composes it from several operations stores m before it divides.
    """
    terms, _ = unit_rows(run, run.inputs["x"], run.moved("x"))
    return run.rounded(terms)


def unit_rows(run: Run, x, dx) -> tuple[Terms, np.ndarray]:
    """Return the error terms of rows [..., D] over their length or eps, and their magnitudes. dx: error of x"""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    m = np.maximum(length, run.params["eps"])
    y = np.abs(x) / m
    dm = np.linalg.norm(dx, axis=-1, keepdims=True) + (gamma(x.shape[-1] + 1, run.u) / 2 + run.u) * length
    dm = dm + run.between(m)
    of_zero = np.where(run.between(m) < m, 0.0, np.inf)  # m stored as 0
    return Terms().add(of_zero).add(dx / m).add(y * dm / m).add(2 * run.u * y), y


def lengths_by(divisor) -> Wrong:
    """Divide rows by a function of their squared length, their number of elements and eps."""

    def wrong(op, inputs, params):
        x = inputs["x"].values().astype(np.float32)
        return x / divisor((x * x).sum(axis=-1, keepdims=True), x.shape[-1], np.float32(params["eps"]))

    return wrong


def _case(label: str, x: tuple[int, ...], eps: float, exponent=-15) -> Case:
    inputs = {"x": Recipe(x, exponent=exponent)}
    return Case(f"l2_norm/f32/{label}-x{'x'.join(map(str, x))}", "l2_norm", inputs, {"eps": eps})


L2_NORM = Operation(
    "l2_norm",
    "Scale each row to length one; a row shorter than eps is divided by eps.",
    family="norms",
    inputs={"x": ROWS},
    output=ROWS,
    params={"eps": 1e-12},
    run=_run,
    bound=_bound,
    mutants=(
        *EPS,
        Mutant("eps added to the length", lengths_by(lambda s, n, eps: np.sqrt(s) + eps)),
        Mutant("eps under the root", lengths_by(lambda s, n, eps: np.sqrt(s + eps * eps))),
        Mutant("divided by the root of the mean square", lengths_by(lambda s, n, eps: np.sqrt(s / n))),
        Mutant("divided by the square", lengths_by(lambda s, n, eps: np.maximum(s, eps))),
        BATCH,
        SQUARES_IN_FLOAT16,
    ),
    cases=(
        _case("plain", (2, 33, 77), 1e-12),
        _case("loud", (5, 132), 1e-12, exponent=-8),
        _case("short", (20, 132), 1e-3, exponent=-32),
        _case("near", (33, 64), 1e-6, exponent=-37),
    ),
)

OPERATIONS = (L2_NORM,)
