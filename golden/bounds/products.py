"""Bounds of linear layers."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import Run, bias_of, products
from refsd.golden.rounding import Bound, Terms
from refsd.golden.tensor import StoredTensor
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.dot_q8_1 import minimums


def _blocks(weight: StoredTensor) -> np.ndarray:
    return weight.data.reshape(-1, BLOCK_TYPES[weight.type].bytes)


def _linear(run: Run) -> Bound:
    """y = W x + b: |W| dx + dW (|x| + dx), the sum of K products and b, the rounding of y.

    Q8_1 activations bring their sum in float16, which W's minimums meet apart from the codes: its 32 half steps,
    and half a unit of a sum that is 127 steps of 32 values at most, are what dx counts for 32 values.
    """
    through = run.numerics.activations.get(run.types["weight"])
    W, dW = np.abs(run.inputs["weight"]), run.moved("weight")
    if through == "q8_1":
        m = np.repeat(minimums(_blocks(run.stored["weight"])), 32).reshape(W.shape).astype(np.float64)
        W = np.abs(run.inputs["weight"] - m) + np.abs(m)
    x = np.abs(run.inputs["x"])
    dx = run.moved("x", through)
    b, db = bias_of(run)
    terms = Terms().add(dx @ W.T, np.sqrt(dx**2 @ (W**2).T / 3))
    terms.add((x + dx) @ dW.T, np.sqrt((x + dx) ** 2 @ (dW**2).T / 3)).add(db)
    absolute = (x + dx) @ (W + dW).T + b + db
    squares = (x + dx) ** 2 @ ((W + dW) ** 2).T + b**2
    terms.add(*products(run.u, W.shape[1], absolute, squares, run.truth))
    return run.rounded(terms)


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "linear": _linear,
}
