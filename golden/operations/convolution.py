"""Convolutions and their patches."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsd.golden.operations.operation import IMAGE, REQUIRED, Operation, entry, values


def _conv2d(a, inputs, params):
    weight = a.expand(inputs["weight"])
    bias = a.expand(inputs["bias"]) if "bias" in inputs else np.zeros(weight.shape[0], weight.dtype)
    return a.conv2d(values(a, inputs["x"]), weight, bias, params["stride"], tuple(params["padding"]))


def _im2col(a, inputs, params):
    x = a.round_as(values(a, inputs["x"]), a.numerics.conv)
    N, C, _, _ = x.shape
    top, bottom, left, right = params["padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    R, S = params["kernel"]
    step = params["stride"]
    patches = sliding_window_view(padded, (R, S), axis=(2, 3))[:, :, ::step, ::step]
    return patches.transpose(0, 1, 4, 5, 2, 3).reshape(N, C * R * S, -1)


OPERATIONS: dict[str, Operation] = {
    "conv2d": entry(
        _conv2d,
        "Cross-correlate an image with filters; padding is (top, bottom, left, right).",
        {"x": IMAGE, "weight": "[K, C, R, S]", "bias?": "[K]"},
        "[N, K, P, Q]",
        channel=1,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
    "im2col": entry(
        _im2col,
        "Copy each filter position's patch into a column; kernel is (R, S).",
        {"x": IMAGE},
        "[N, C*R*S, P*Q]",
        channel=1,
        kernel=REQUIRED,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
}
