"""Bounds of convolutions."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import Run, bias_of, movement, products
from refsd.golden.rounding import Bound, Terms
from refsd.kernels.conv2d_im2col import conv2d_im2col

# Winograd F(4x4, 3x3), which an engine may choose for a 3x3 filter, magnifies a float32 rounding: measured 58 u
# relative to the norm of the output on a 64-channel layer (conv2d's limit must leave room for it).
_WINOGRAD = 64.0


def _conv2d(run: Run) -> Bound:
    """linear's bound with patches for rows; a 3x3 filter of stride 1 may be Winograd's."""
    stride, padding = run.params["stride"], tuple(run.params["padding"])
    weight = run.inputs["weight"]
    K, C, R, S = weight.shape
    none = np.zeros(K)

    def sum_of(x, w):
        return conv2d_im2col(np.ascontiguousarray(x), np.ascontiguousarray(w), none, stride, padding)

    W, dW = np.abs(weight), run.moved("weight", run.numerics.conv)
    x, dx = np.abs(run.inputs["x"]), run.moved("x", run.numerics.conv)
    b, db = (np.reshape(t, (-1, 1, 1)) for t in bias_of(run))
    terms = Terms().add(sum_of(dx, W), np.sqrt(sum_of(dx**2, W**2) / 3))
    terms.add(sum_of(x + dx, dW), np.sqrt(sum_of((x + dx) ** 2, dW**2) / 3)).add(db)
    absolute = sum_of(x + dx, W + dW) + b + db
    squares = sum_of((x + dx) ** 2, (W + dW) ** 2) + b**2
    terms.add(*products(run.u, C * R * S, absolute, squares, run.truth))
    if R == S == 3 and stride == 1:
        typical = _WINOGRAD * run.u * np.sqrt(squares.max(axis=(2, 3), keepdims=True))
        terms.add(8 * typical, typical)
    return run.rounded(terms)


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "conv2d": _conv2d,
    "im2col": movement("x", conv=True),
}
