"""Patches of a convolution, copied into columns."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import F16_INPUT, SIDES_SWAPPED, Wrong, answer, turned
from refsd.golden.operation import IMAGE, REQUIRED, Mutant, Operation, values
from refsd.golden.operations.convolution import dilation_ignored, padding_repeated, window_fits
from refsd.golden.recipe import Recipe


def _run(a, inputs, params):
    x = a.round_as(values(a, inputs["x"]), a.numerics.conv)
    N, C, _, _ = x.shape
    top, bottom, left, right = params["padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    R, S = params["kernel"]
    (down, across), (high, wide) = (np.broadcast_to(params[name], 2) for name in ("stride", "dilation"))
    windows = sliding_window_view(padded, (high * (R - 1) + 1, wide * (S - 1) + 1), axis=(2, 3))
    patches = windows[:, :, ::down, ::across, ::high, ::wide]
    return patches.transpose(0, 1, 4, 5, 2, 3).reshape(N, C * R * S, -1)


def patches_channel_last(op, inputs, params):
    y = answer(op, inputs, params)
    N, CRS, PQ = y.shape
    C = inputs["x"].shape[1]
    return y.reshape(N, C, CRS // C, PQ).swapaxes(1, 2).reshape(y.shape)


def sides_of_a_filter_confused(op, inputs, params):
    """Some patches land in others' columns, and some in none."""
    y = answer(op, inputs, params)
    R, S = params["kernel"]
    if R == S:
        return None
    side, (N, C) = max(R, S), inputs["x"].shape[:2]
    high, wide = np.broadcast_to(params["dilation"], 2)
    top, bottom, left, right = params["padding"]
    room = top, bottom + high * (side - R), left, right + wide * (side - S)
    square = answer(op, inputs, {**params, "kernel": (side, side), "padding": room})
    square = square.reshape(N, C, side, side, *y.shape[2:])
    wrong = np.zeros((N, C * R * S + side * S, *y.shape[2:]), y.dtype)
    for c in range(C):
        for i in range(R * S):
            s, r = divmod(i, S)
            wrong[:, c * R * S + r * S + s] = square[:, c, r, s]
    return wrong[:, : C * R * S]


def taps_left_out(first: int) -> Wrong:
    """A column's taps from this one on are zeros."""

    def wrong(op, inputs, params):
        y = answer(op, inputs, params)
        if y.shape[1] <= first:
            return None
        y[:, first:] = 0
        return y

    return wrong


IM2COL = Operation(
    "im2col",
    "Copy each filter position's patch into a column; kernel is (R, S).",
    family="convolution",
    inputs={"x": IMAGE},
    output="[N, C*R*S, P*Q]",
    channel=1,
    params={"kernel": REQUIRED, "stride": 1, "padding": (0, 0, 0, 0), "dilation": 1},
    run=_run,
    fits=window_fits,
    bound=lambda run: movement(run, run.numerics.conv),
    mutants=(
        Mutant("columns channel-last", patches_channel_last),
        Mutant("border repeated", padding_repeated),
        Mutant("dilation ignored", dilation_ignored),
        Mutant("stride's two numbers exchanged", turned("stride")),
        Mutant("positions counted as if the filter were as high as wide", sides_of_a_filter_confused),
        *(Mutant(f"taps of a column from {n} on not written", taps_left_out(n)) for n in (256, 512, 1024)),
        SIDES_SWAPPED,
        F16_INPUT,
    ),
    cases=(
        Case(
            "im2col/f32/3x3-n2-c7-h9-w5",
            "im2col",
            {"x": Recipe((2, 7, 9, 5))},
            {"kernel": (3, 3), "padding": (1, 1, 1, 1)},
        ),
        Case(
            "im2col/f32/down-n1-c4-h8-w11",
            "im2col",
            {"x": Recipe((1, 4, 8, 11))},
            {"kernel": (3, 2), "stride": 2, "padding": (0, 1, 1, 0)},
        ),
        Case(
            "im2col/f32/dilated-n1-c5-h9-w7",
            "im2col",
            {"x": Recipe((1, 5, 9, 7))},
            {"kernel": (2, 3), "dilation": (3, 2), "padding": (1, 1, 2, 2)},
        ),
        Case(
            "im2col/f32/uneven-stride-n1-c3-h9-w11",
            "im2col",
            {"x": Recipe((1, 3, 9, 11))},
            {"kernel": (3, 3), "stride": (2, 3), "padding": (1, 1, 1, 1)},
        ),
        # One axis, and columns of more taps than a block has threads.
        Case(
            "im2col/f32/one-axis-n1-c420-h1-w9",
            "im2col",
            {"x": Recipe((1, 420, 1, 9))},
            {"kernel": (1, 3), "padding": (0, 0, 1, 1)},
        ),
    ),
)

OPERATIONS = (IM2COL,)
