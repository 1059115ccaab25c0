"""SwiGLU as in gpt-oss."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, answer
from refsd.golden.operation import ROWS, Mutant, Operation, values
from refsd.golden.operations.activations import SILU_ERROR, gated_bound, stored_sigmoid
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound


def _bound(run: Run) -> Bound:
    """The gate's slope is that of x sigmoid(x); alpha g has quick_gelu's error, v + 1 is rounded by u.

    An engine that composes it from several operations stores v + 1, and what stored_sigmoid names.
    """
    alpha, limit = run.params["alpha"], run.params["limit"]
    g, v = np.minimum(run.inputs["gate"], limit), np.clip(run.inputs["value"], -limit, limit) + 1
    kind = (1.1, lambda x: 2 + 2 * alpha * np.abs(x) / (1 + np.exp(np.clip(alpha * x, -60, 60))), SILU_ERROR[2])
    dv = run.moved("value") + run.u * np.abs(v) + run.between(np.abs(v))
    activated = g / (1 + np.exp(-alpha * g))
    return gated_bound(run, g, run.moved("gate"), v, dv, activated, kind, stored_sigmoid(run, g, alpha))


def oai(gate_low=None, plus=1.0, limited=True, alpha=None) -> Wrong:
    """Compute gpt-oss's gate with a step left out or changed."""

    def wrong(op, inputs, params):
        limit = params["limit"] if limited else np.inf
        g = np.clip(inputs["gate"].values(), -limit if gate_low else -np.inf, limit).astype(np.float32)
        v = np.clip(inputs["value"].values(), -limit, limit)
        return g / (1 + np.exp(-np.float32(alpha or params["alpha"]) * g)) * (v + np.float32(plus))

    return wrong


def exchanged_inputs(op, inputs, params):
    return answer(op, {"gate": inputs["value"], "value": inputs["gate"]}, params)


_PAIR = {"gate": Recipe((2, 33, 77), exponent=-13), "value": Recipe((2, 33, 77), exponent=-13)}

SWIGLU_OAI = Operation(
    "swiglu_oai",
    "g sigmoid(alpha g) (v + 1), g = min(gate, limit), v = value clipped to -limit..limit.",
    family="gates",
    inputs={"gate": ROWS, "value": ROWS},
    output=ROWS,
    params={"alpha": 1.702, "limit": 7.0},
    run=lambda a, inputs, params: a.swiglu_oai(values(a, inputs["gate"]), values(a, inputs["value"]), **params),
    bound=_bound,
    mutants=(
        Mutant("one not added", oai(plus=0.0)),
        Mutant("gate without limit", oai(limited=False)),
        Mutant("gate limited below too", oai(gate_low=True)),
        Mutant("SiLU", oai(alpha=1.0)),
        Mutant("gate and value exchanged", exchanged_inputs),
    ),
    cases=(
        Case("swiglu_oai/f32/x2x33x77", "swiglu_oai", _PAIR),
        Case("swiglu_oai/f32/tight-x2x33x77", "swiglu_oai", _PAIR, {"alpha": 1.25, "limit": 2.0}),
    ),
)

OPERATIONS = (SWIGLU_OAI,)
