"""Layer normalisation without weights, then scale and shift."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.mutations import BATCH, EPS, EPS_IN_THE_ROW
from refsd.golden.operation import Operation, values
from refsd.golden.operations.normalisation import CONDITIONED, TOKENS, Affine, norm_axis, per_item, tokens_case
from refsd.golden.rounding import Bound, unit


def _run(a, inputs, params):
    return a.adaptive_layer_norm(*(values(a, inputs[name]) for name in ("x", "shift", "scale")), params["eps"])


def _bound(run: Run) -> Bound:
    """norm_axis with 1 + scale as weight and shift as bias; an engine may round between the norm and these.

    An engine that composes it from several operations stores the norm, 1 + scale and their product.
    """
    x, scale = run.inputs["x"], run.inputs["scale"][:, None]
    (_, ds), (b, db) = per_item(run, "scale"), per_item(run, "shift")
    factor = np.abs(1 + scale)
    affine = Affine(1 + scale, ds + run.u * factor, run.inputs["shift"][:, None], db)
    terms = norm_axis(run, x, run.moved("x"), affine, True, "layer_norm" in run.numerics.one_pass)
    z = np.abs(x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + run.params["eps"])
    terms.add(unit(run.numerics.storage_dtype) * (1 + np.abs(scale)) * z)
    terms.add(z * run.between(factor)).add(run.between(z * (factor + run.between(factor))))
    return run.rounded(terms.add(run.u * b))


ADAPTIVE_LAYER_NORM = Operation(
    "adaptive_layer_norm",
    "Layer normalisation without weights, then modulate.",
    family="norms",
    inputs={"x": TOKENS, "shift": "[N, D]", "scale": "[N, D]"},
    output=TOKENS,
    params={"eps": 1e-6},
    run=_run,
    bound=_bound,
    mutants=(*EPS, EPS_IN_THE_ROW, *CONDITIONED, BATCH),
    cases=(
        tokens_case("adaptive_layer_norm", "plain", (2, 33, 77), ("shift", "scale"), eps=1e-6),
        tokens_case("adaptive_layer_norm", "tiny", (3, 10, 320), ("shift", "scale"), "tiny", eps=1e-6),
        tokens_case("adaptive_layer_norm", "mean", (2, 10, 132), ("shift", "scale"), "shifted", eps=1e-6),
        tokens_case("adaptive_layer_norm", "large-eps", (2, 7, 64), ("shift", "scale"), "tiny", eps=1e-4),
    ),
)

OPERATIONS = (ADAPTIVE_LAYER_NORM,)
