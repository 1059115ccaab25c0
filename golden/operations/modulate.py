"""Scale and shift of a transformer block's tokens."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.mutations import BATCH
from refsd.golden.operation import Operation, values
from refsd.golden.operations.normalisation import CONDITIONED, TOKENS, per_item, tokens_case
from refsd.golden.rounding import Bound, Terms


def _bound(run: Run) -> Bound:
    """y = x (1 + s) + b, or x + x s + b: |1 + s| dx + |x| ds + db, and 2 u of each term

    An engine that composes it from several operations stores 1 + s and the product.
    """
    x, dx = np.abs(run.inputs["x"]), run.moved("x")
    (s, ds), (b, db) = per_item(run, "scale"), per_item(run, "shift")
    factor = np.abs(1 + run.inputs["scale"][:, None])
    terms = Terms().add((1 + s) * dx).add(x * ds).add(db)
    terms.add(x * run.between(factor)).add(run.between(x * (factor + run.between(factor))))
    return run.rounded(terms.add(2 * run.u * (x * (1 + s) + b)))


MODULATE = Operation(
    "modulate",
    "x * (1 + scale) + shift, an item's tokens alike.",
    family="gates",
    inputs={"x": TOKENS, "shift": "[N, D]", "scale": "[N, D]"},
    output=TOKENS,
    run=lambda a, inputs, params: a.modulate(*(values(a, inputs[name]) for name in ("x", "shift", "scale"))),
    bound=_bound,
    mutants=(*CONDITIONED, BATCH),
    cases=(
        tokens_case("modulate", "plain", (2, 33, 77), ("shift", "scale")),
        tokens_case("modulate", "wide", (3, 5, 132), ("shift", "scale"), "wide"),
    ),
)

OPERATIONS = (MODULATE,)
