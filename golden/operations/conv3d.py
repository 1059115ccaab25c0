"""Convolution of videos."""

import numpy as np

from refsd.golden.mutations import other_input
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.operations.convolution import (
    MUTANTS,
    Geometry,
    convolution_bound,
    convolution_case,
    geometry,
    weights,
    window_fits,
)

_VOLUMES = (
    Geometry("3x3x3", (2, 6, 5, 7, 9), 8, (3, 3, 3), 1, (1, 1, 1, 1, 1, 1)),
    Geometry("causal", (1, 20, 4, 6, 7), 7, (3, 3, 3), 1, (2, 0, 1, 1, 1, 1)),
    Geometry("down", (1, 7, 5, 8, 11), 6, (3, 3, 3), (1, 2, 2), (2, 0, 0, 1, 0, 1)),
    Geometry("time-down", (2, 9, 7, 3, 5), 5, (3, 1, 1), (2, 1, 1), (0, 0, 0, 0, 0, 0)),
    Geometry("dilated", (1, 5, 6, 7, 8), 4, (3, 2, 3), 1, (2, 2, 0, 1, 1, 1), dilation=(2, 1, 1)),
    Geometry("groups", (1, 6, 3, 5, 7), 4, (2, 3, 3), 1, (1, 0, 1, 1, 1, 1), groups=2),
    Geometry("patch", (1, 4, 2, 8, 6), 20, (1, 2, 2), (1, 2, 2), (0, 0, 0, 0, 0, 0)),
    Geometry("one-wide", (1, 7, 5, 8, 1), 6, (1, 2, 2), (1, 1, 2), (0, 0, 0, 0, 0, 1)),
)

# As many channels as filters; one parameter with other numbers down than across.
_UNEVEN = (
    Geometry("uneven-stride", (1, 5, 3, 6, 7), 5, (2, 3, 3), (1, 2, 1), (0, 0, 1, 1, 1, 1)),
    Geometry("uneven-dilation", (1, 5, 3, 6, 7), 5, (2, 3, 3), 1, (0, 0, 1, 1, 1, 1), dilation=(1, 1, 2)),
)

CONV3D = Operation(
    "conv3d",
    "The same with frames; padding is (front, back, top, bottom, left, right), stride and dilation are a "
    "number or (frames, down, across).",
    family="convolution",
    inputs={"x": "[N, C, D, H, W]", "weight": "[K, C/groups, T, R, S]", "bias?": "[K]"},
    output="[N, K, F, P, Q]",
    channel=1,
    params={"stride": 1, "padding": (0, 0, 0, 0, 0, 0), "dilation": 1, "groups": 1},
    run=lambda a, inputs, params: a.conv3d(values(a, inputs["x"]), *weights(a, inputs), *geometry(params)),
    fits=window_fits,
    bound=convolution_bound,
    mutants=(
        Mutant("filter flipped in time", other_input("weight", lambda w: w[:, :, ::-1])),
        Mutant("filter flipped in space", other_input("weight", lambda w: w[:, :, :, ::-1, ::-1])),
        Mutant("the first frame alone", other_input("x", lambda x: np.broadcast_to(x[:, :, :1], x.shape))),
        *MUTANTS,
    ),
    cases=(
        *(convolution_case("conv3d", s, t) for t in ("f32", "f16") for s in _VOLUMES),
        *(convolution_case("conv3d", s, "f32") for s in _UNEVEN),
    ),
)

OPERATIONS = (CONV3D,)
