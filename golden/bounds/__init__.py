"""How far an honest engine may be from the truth, element by element, derived from its numerics.

Each bound is a run of the operation on absolute values, as TOSA's conformance rule does it: it
scales with the data, where a fixed rtol, atol or NMSE does not. Terms are first order; u is the
relative error of one rounding (rounding.py), gamma(n) that of n in a row. Engines that sum in
another order, in blocks or in a wider type stay inside, since gamma(n) is the serial worst case.

An element whose bound overflows may be anything. An element whose bound is zero must be exact.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refsd.golden.bounds import (
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
from refsd.golden.bounds.run import Run
from refsd.golden.numerics import Numerics
from refsd.golden.operations import complete
from refsd.golden.rounding import Bound
from refsd.golden.tensor import StoredTensor

BOUNDS: dict[str, Callable[[Run], Bound]] = {
    **products.BOUNDS,
    **convolution.BOUNDS,
    **norms.BOUNDS,
    **activations.BOUNDS,
    **attention.BOUNDS,
    **positions.BOUNDS,
    **resampling.BOUNDS,
    **layout.BOUNDS,
    **blocks.BOUNDS,
    **adapters.BOUNDS,
}


def bound(
    op: str, numerics: Numerics, inputs: Mapping[str, StoredTensor], params: Mapping[str, Any], truth: np.ndarray
) -> Bound:
    """Error bound of one operation's output "y" under the numerics. truth: the float64 answer.

    Raises BadInput for an unknown operation, see operations.complete.
    """
    full = complete(op, inputs, params)
    values = {name: np.asarray(tensor.values(), np.float64) for name, tensor in inputs.items()}
    types = {name: tensor.type for name, tensor in inputs.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        return BOUNDS[op](Run(numerics, values, types, full, np.asarray(truth, np.float64), inputs))


__all__ = ["BOUNDS", "Bound", "bound"]
