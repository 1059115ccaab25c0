"""The operations that a case may ask for, a page each: declaration, reference, bound, known bugs, cases.

A page is a module of this folder that has OPERATIONS; importing this package finds all of them. The other
modules hold what several pages share. The reference answers a case with `run`; an engine's adapter looks up
the arguments, their shapes and the output's shape in the same table.
"""

from typing import Any

import numpy as np

from refsd.golden.operation import REQUIRED, Inputs, Operation, Params
from refsd.golden.pages import by_name
from refsd.golden.rounding import Bound
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import Numerics

OPERATIONS: dict[str, Operation] = by_name(__name__, "OPERATIONS")


def complete(op: str, inputs: Inputs, params: Params) -> dict[str, Any]:
    """Return the parameters with their defaults filled in.

    Raises BadInput for an unknown operation, a missing or unknown argument or parameter.
    """
    if op not in OPERATIONS:
        raise BadInput(f"unknown operation {op!r}: expected one of {', '.join(OPERATIONS)}")
    return OPERATIONS[op].complete(inputs, params)


def run(op: str, arithmetic: Arithmetic, inputs: Inputs, params: Params) -> dict[str, np.ndarray]:
    """Compute one operation under the arithmetic's numerics. Raises BadInput, see `complete`."""
    full = complete(op, inputs, params)
    return {"y": OPERATIONS[op].answer(arithmetic, inputs, full)}


def bound(op: str, numerics: Numerics, inputs: Inputs, params: Params, truth: np.ndarray) -> Bound:
    """Bound the error of one operation's output "y" under the numerics. truth: the float64 answer.

    Raises BadInput, see `complete`.
    """
    return OPERATIONS[op].bound_of(numerics, inputs, complete(op, inputs, params), truth)


__all__ = ["OPERATIONS", "REQUIRED", "Inputs", "Operation", "Params", "bound", "complete", "run"]
