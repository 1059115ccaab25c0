"""Upsampling that repeats each pixel."""

import numpy as np

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, answer, other_input, other_output
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.operations.resize import ENDS
from refsd.golden.recipe import Recipe


def bilinear(op, inputs, params):
    x, factor = inputs["x"].values(), params["factor"]
    y = answer(op, inputs, params)
    return (y + np.roll(np.repeat(np.repeat(x, factor, 2), factor, 3), 1, axis=3)) / 2


def rows_a_height_apart(x):
    """Read row i of all channels' rows from number i H on, not from i W; zeros behind the last."""
    H, W = x.shape[2:]
    flat = np.pad(x.ravel(), (0, x.size * H))
    return flat[H * np.arange(x.size // W)[:, None] + np.arange(W)].reshape(x.shape)


def rounded(op, inputs, params):
    """Take the pixel whose corner is nearest, as of row 1 at factor 2 the second."""
    x, factor = inputs["x"].values(), params["factor"]
    at = [np.minimum((2 * np.arange(n * factor) + factor) // (2 * factor), n - 1) for n in x.shape[2:]]
    return x[:, :, at[0][:, None], at[1]]


def tiled(op, inputs, params):
    x, factor = inputs["x"].values(), params["factor"]
    return np.tile(x, (1, 1, factor, factor))


UPSAMPLE_NEAREST = Operation(
    "upsample_nearest",
    "Repeat each pixel `factor` times in both directions.",
    inputs={"x": IMAGE},
    output="[N, C, H*factor, W*factor]",
    channel=1,
    params={"factor": 2},
    run=lambda a, inputs, params: a.upsample_nearest(values(a, inputs["x"]), params["factor"]),
    fits=lambda shapes, params: params["factor"] >= 1,
    bound=movement,
    mutants=(
        SIDES_SWAPPED,
        BATCH,
        *ENDS,
        Mutant("the picture side by side, not each pixel", tiled),
        Mutant("rows read H numbers apart, not W", other_input("x", rows_a_height_apart)),
        Mutant("coordinates rounded to the nearest pixel, not down", rounded),
        Mutant("shifted by a pixel", other_output(lambda y: np.roll(y, 1, axis=3))),
        Mutant("averaged with the neighbour", bilinear),
    ),
    cases=(
        Case("upsample_nearest/f32/x2-n2-c33-h5-w7", "upsample_nearest", {"x": Recipe((2, 33, 5, 7))}),
        Case("upsample_nearest/f32/x3-n1-c4-h6-w5", "upsample_nearest", {"x": Recipe((1, 4, 6, 5))}, {"factor": 3}),
    ),
)

OPERATIONS = (UPSAMPLE_NEAREST,)
