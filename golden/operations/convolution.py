"""Convolutions and their patches."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsd.golden.operations.operation import IMAGE, REQUIRED, Operation, entry, values


def _each(value):
    """A stride or a dilation: lists, which JSON makes of tuples, become tuples again."""
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _how(params):
    return _each(params["stride"]), tuple(params["padding"]), _each(params["dilation"]), params["groups"]


def _weights(a, inputs):
    weight = a.expand(inputs["weight"])
    return weight, a.expand(inputs["bias"]) if "bias" in inputs else np.zeros(weight.shape[0], weight.dtype)


def _conv2d(a, inputs, params):
    return a.conv2d(values(a, inputs["x"]), *_weights(a, inputs), *_how(params))


def _conv3d(a, inputs, params):
    return a.conv3d(values(a, inputs["x"]), *_weights(a, inputs), *_how(params))


def _im2col(a, inputs, params):
    x = a.round_as(values(a, inputs["x"]), a.numerics.conv)
    N, C, _, _ = x.shape
    top, bottom, left, right = params["padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    R, S = params["kernel"]
    (down, across), (high, wide) = (np.broadcast_to(params[name], 2) for name in ("stride", "dilation"))
    windows = sliding_window_view(padded, (high * (R - 1) + 1, wide * (S - 1) + 1), axis=(2, 3))
    patches = windows[:, :, ::down, ::across, ::high, ::wide]
    return patches.transpose(0, 1, 4, 5, 2, 3).reshape(N, C * R * S, -1)


OPERATIONS: dict[str, Operation] = {
    "conv2d": entry(
        _conv2d,
        "Cross-correlate an image with filters; padding is (top, bottom, left, right), stride and dilation are a "
        "number or (down, across).",
        {"x": IMAGE, "weight": "[K, C/groups, R, S]", "bias?": "[K]"},
        "[N, K, P, Q]",
        channel=1,
        stride=1,
        padding=(0, 0, 0, 0),
        dilation=1,
        groups=1,
    ),
    "conv3d": entry(
        _conv3d,
        "The same with frames; padding is (front, back, top, bottom, left, right), stride and dilation are a "
        "number or (frames, down, across).",
        {"x": "[N, C, D, H, W]", "weight": "[K, C/groups, T, R, S]", "bias?": "[K]"},
        "[N, K, F, P, Q]",
        channel=1,
        stride=1,
        padding=(0, 0, 0, 0, 0, 0),
        dilation=1,
        groups=1,
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
        dilation=1,
    ),
}
