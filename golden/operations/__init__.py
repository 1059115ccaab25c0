"""The operations that a case may ask for: tensors and parameters in, named tensors out.

One line an operation, in a file a family: it looks up its arguments and hands them to Arithmetic,
which rounds as the numerics say. The reference answers a case with `run`; an engine's adapter reads
the same table to learn the arguments, their shapes and what must come back.
"""

from typing import Any

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.golden.operations import (
    activations,
    adapters,
    attention,
    blocks,
    convolution,
    layout,
    norms,
    positions,
    products,
    resampling,
)
from refsd.golden.operations.operation import REQUIRED, Inputs, Operation, Params

OPERATIONS: dict[str, Operation] = {
    **products.OPERATIONS,
    **convolution.OPERATIONS,
    **norms.OPERATIONS,
    **activations.OPERATIONS,
    **attention.OPERATIONS,
    **positions.OPERATIONS,
    **resampling.OPERATIONS,
    **layout.OPERATIONS,
    **blocks.OPERATIONS,
    **adapters.OPERATIONS,
}


def complete(op: str, inputs: Inputs, params: Params) -> dict[str, Any]:
    """The parameters with their defaults filled in.

    Raises BadInput for an unknown operation, a missing or unknown argument or parameter.
    """
    if op not in OPERATIONS:
        raise BadInput(f"unknown operation {op!r}: expected one of {', '.join(OPERATIONS)}")
    entry = OPERATIONS[op]
    required = {name for name in entry.inputs if not name.endswith("?")}
    known = {name.rstrip("?") for name in entry.inputs}
    if required - inputs.keys() or inputs.keys() - known:
        raise BadInput(f"{op}: inputs {sorted(inputs)}, expected {', '.join(entry.inputs)}")
    if params.keys() - entry.params.keys():
        raise BadInput(f"{op}: params {sorted(params)}, expected some of {', '.join(entry.params) or 'none'}")
    full = {**entry.params, **params}
    missing = [name for name, value in full.items() if value is REQUIRED]
    if missing:
        raise BadInput(f"{op}: missing params {', '.join(missing)}")
    return full


def run(op: str, arithmetic: Arithmetic, inputs: Inputs, params: Params) -> dict[str, np.ndarray]:
    """Answer one operation under the arithmetic's numerics. Raises BadInput, see `complete`."""
    return OPERATIONS[op].run(arithmetic, inputs, complete(op, inputs, params))


__all__ = ["OPERATIONS", "REQUIRED", "Inputs", "Operation", "Params", "complete", "run"]
