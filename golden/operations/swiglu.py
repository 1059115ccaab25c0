"""SwiGLU, the gated activation of language models and of later transformers."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, answer, other_input
from refsd.golden.operation import ROWS, Mutant, Operation, values
from refsd.golden.operations.activations import (
    GELU,
    QUICK_GELU,
    SIGMOID,
    SILU,
    SILU_ERROR,
    SILU_OVERFLOWING,
    gated_bound,
    rational_sigmoid,
)
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound
from refsd.numerics.tensor import stored


def _bound(run: Run) -> Bound:
    (g, v), (dg, dv) = (np.split(t, 2, axis=-1) for t in (run.inputs["x"], run.moved("x")))
    if run.params["second_gates"]:
        g, v, dg, dv = v, g, dv, dg
    return gated_bound(run, g, dg, v, dv, g / (1 + np.exp(-g)), SILU_ERROR, rational_sigmoid(run, g))


def exchanged_halves(x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([second, first], axis=-1)


def packed_half(half: int) -> Wrong:
    """Read one half of each row as if the rows of that half followed each other."""

    def change(x: np.ndarray) -> np.ndarray:
        halves = np.split(x, 2, axis=-1)
        halves[half] = x.reshape(-1)[half * halves[0].shape[-1] :][: x.size // 2].reshape(halves[0].shape)
        return np.concatenate(halves, axis=-1)

    return other_input("x", change)


HALVES = (
    Mutant("halves in the wrong order", other_input("x", exchanged_halves)),
    Mutant("the first half read as if its rows were packed", packed_half(0)),
    Mutant("the second half read as if its rows were packed", packed_half(1)),
)


def swiglu_with(activation: Operation, computed: Wrong = answer) -> Wrong:
    def wrong(op, inputs, params):
        first, second = np.split(inputs["x"].values(), 2, axis=-1)
        gate, value = (second, first) if params["second_gates"] else (first, second)
        return computed(activation, {"x": stored(np.ascontiguousarray(gate))}, {}) * value

    return wrong


SWIGLU = Operation(
    "swiglu",
    "SiLU of the first half of the last axis times the second half; second_gates exchanges them.",
    family="gates",
    inputs={"x": "[..., 2*D]"},
    output=ROWS,
    params={"second_gates": False},
    run=lambda a, inputs, params: a.swiglu(values(a, inputs["x"]), params["second_gates"]),
    bound=_bound,
    mutants=(
        *HALVES,
        Mutant("GELU for SiLU", swiglu_with(GELU)),
        Mutant("sigmoid for SiLU", swiglu_with(SIGMOID)),
        Mutant("quick GELU for SiLU", swiglu_with(QUICK_GELU)),
        Mutant(SILU_OVERFLOWING.name, swiglu_with(SILU, SILU_OVERFLOWING.change)),
    ),
    cases=(
        Case("swiglu/f32/x2x33x154", "swiglu", {"x": Recipe((2, 33, 154), exponent=-14)}),
        # Halves in float16's range, products beyond 65504; gates whose exponential float32 cannot hold.
        Case("swiglu/f32/loud-x7x260", "swiglu", {"x": Recipe((7, 260), exponent=-7)}),
        Case("swiglu/f32/second-x5x640", "swiglu", {"x": Recipe((5, 640))}, {"second_gates": True}),
    ),
)

OPERATIONS = (SWIGLU,)
