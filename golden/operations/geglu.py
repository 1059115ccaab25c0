"""GEGLU, the gated activation of SD's UNets."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, answer
from refsd.golden.operation import ROWS, Mutant, Operation, values
from refsd.golden.operations.activations import GELU_ERROR, GELU_TANH, SILU, activation_terms
from refsd.golden.operations.swiglu import HALVES
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, floor, unit
from refsd.numerics.tensor import stored


def _run(a, inputs, params):
    value, gate = np.split(values(a, inputs["x"]), 2, axis=-1)
    return value * a.gelu(gate)


def _bound(run: Run) -> Bound:
    """y = v gelu(g): dv |gelu(g)| + |v| dgelu, and the product's rounding."""
    v, g = np.split(run.inputs["x"], 2, axis=-1)
    dv, dg = np.split(run.moved("x"), 2, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gelu = np.where(v != 0, run.truth / v, 0.0)
    inner = activation_terms(run, g, dg, gelu, *GELU_ERROR)
    inner.add(unit(run.numerics.storage_dtype) * np.abs(gelu))
    terms = Terms().add(np.abs(v) * inner.limit, np.abs(v) * np.sqrt(inner.square)).add(dv * np.abs(gelu))
    return run.rounded(terms, extra=floor(run.numerics.storage_dtype) * np.abs(v))


def gated_by(activation: Operation) -> Wrong:
    def wrong(op, inputs, params):
        value, gate = np.split(inputs["x"].values(), 2, axis=-1)
        return value * answer(activation, {"x": stored(np.ascontiguousarray(gate))}, {})

    return wrong


GEGLU = Operation(
    "geglu",
    "The first half of the last axis times GELU (erf) of the second half.",
    family="gates",
    inputs={"x": "[..., 2*D]"},
    output=ROWS,
    run=_run,
    bound=_bound,
    mutants=(
        *HALVES,
        Mutant("tanh for erf", gated_by(GELU_TANH)),
        Mutant("SiLU for GELU", gated_by(SILU)),
    ),
    cases=(
        Case("geglu/f32/x2x33x154", "geglu", {"x": Recipe((2, 33, 154), exponent=-14)}),
        Case("geglu/f32/x5x640", "geglu", {"x": Recipe((5, 640))}),
        # Halves in float16's range, products beyond 65504.
        Case("geglu/f32/loud-x7x260", "geglu", {"x": Recipe((7, 260), exponent=-7)}),
    ),
)

OPERATIONS = (GEGLU,)
