"""Bounds of linear layers."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import Run, bias_of, products
from refsd.golden.rounding import Bound, Terms


def _linear(run: Run) -> Bound:
    """y = W x + b: |W| dx + dW (|x| + dx), the sum of K products and b, the rounding of y."""
    W, dW = np.abs(run.inputs["weight"]), run.moved("weight")
    x = np.abs(run.inputs["x"])
    dx = run.moved("x", run.numerics.activations.get(run.types["weight"]))
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
