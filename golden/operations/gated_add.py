"""A gated residual: x + gate * h."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.mutations import first_of_batch, other_input, to_float16
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.operations.normalisation import TOKENS, exchanged, per_item, tokens_case
from refsd.golden.rounding import Bound, Terms


def _bound(run: Run) -> Bound:
    """y = x + g h: dx + |g| dh + |h| dg, and u of the product and of the sum.

    An engine that composes it from several operations stores the product.
    """
    x, h = np.abs(run.inputs["x"]), np.abs(run.inputs["h"])
    g, dg = per_item(run, "gate")
    terms = Terms().add(run.moved("x")).add(g * run.moved("h")).add(h * dg).add(run.between(g * h))
    return run.rounded(terms.add(2 * run.u * (x + g * h)))


def gate_times_h_in_float16(op, inputs, params):
    x, h, gate = (inputs[name].values() for name in ("x", "h", "gate"))
    return x + to_float16(gate[:, None] * h)


def gate_on_the_sum(op, inputs, params):
    x, h, gate = (inputs[name].values() for name in ("x", "h", "gate"))
    return (x + h) * gate[:, None]


GATED_ADD = Operation(
    "gated_add",
    "x + gate * h, an item's tokens alike.",
    family="gates",
    inputs={"x": TOKENS, "h": TOKENS, "gate": "[N, D]"},
    output=TOKENS,
    run=lambda a, inputs, params: a.gated_add(*(values(a, inputs[name]) for name in ("x", "h", "gate"))),
    bound=_bound,
    mutants=(
        Mutant("gate times h rounded to float16", gate_times_h_in_float16),
        Mutant("gate missing", other_input("gate", np.ones_like)),
        Mutant("gate passed through tanh", other_input("gate", np.tanh)),
        Mutant("one more than the gate", other_input("gate", lambda g: g + 1)),
        Mutant("every item gated as the first", other_input("gate", first_of_batch)),
        Mutant("x and h exchanged", exchanged("x", "h")),
        Mutant("the gate multiplies x, too", gate_on_the_sum),
        Mutant("channels of the gate one off", other_input("gate", lambda g: np.roll(g, 1, axis=1))),
    ),
    cases=(
        tokens_case("gated_add", "plain", (2, 33, 77), ("h", "gate")),
        tokens_case("gated_add", "wide", (3, 5, 132), ("h", "gate"), "wide"),
    ),
)

OPERATIONS = (GATED_ADD,)
