"""Move blocks of pixels into channels, and back."""

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, F16_INPUT, SIDES_SWAPPED, Wrong, answer, other_input
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.kernels import pixel_shuffle


def _pixel_unshuffle(a, inputs, params):
    return pixel_shuffle.pixel_unshuffle(values(a, inputs["x"]), params["factor"])


def _pixel_shuffle(a, inputs, params):
    return pixel_shuffle.pixel_shuffle(values(a, inputs["x"]), params["factor"])


def channels(order: str) -> Wrong:
    """Put the parts (c, i, j) of y's channels in another order; "cij" is right."""

    def wrong(op, inputs, params):
        y, p = answer(op, inputs, params), params["factor"]
        N, _, H, W = y.shape
        parts = dict(zip("cij", range(1, 4), strict=True))
        y = y.reshape(N, -1, p, p, H, W).transpose(0, *(parts[axis] for axis in order), 4, 5)
        return y.reshape(N, -1, H, W)

    return wrong


def read_channels(order: str) -> Wrong:
    """Read the parts of x's channels in another order."""

    def wrong(op, inputs, params):
        p = params["factor"]

        def reordered(x):
            N, C, H, W = x.shape
            size = {"c": C // (p * p), "i": p, "j": p}
            x = x.reshape(N, *(size[axis] for axis in order), H, W)
            return x.transpose(0, *(1 + order.index(axis) for axis in "cij"), 4, 5).reshape(N, C, H, W)

        return other_input("x", reordered)(op, inputs, params)

    return wrong


_PICTURE = Recipe((2, 5, 6, 8))

PIXEL_UNSHUFFLE = Operation(
    "pixel_unshuffle",
    "Each factor x factor block of pixels becomes channels: c, then row, then column in the block.",
    inputs={"x": IMAGE},
    output="[N, C*factor^2, H/factor, W/factor]",
    channel=1,
    params={"factor": 2},
    run=_pixel_unshuffle,
    bound=movement,
    mutants=(
        Mutant("place before channel", channels("ijc")),
        Mutant("column before row", channels("cji")),
        SIDES_SWAPPED,
        BATCH,
        F16_INPUT,
    ),
    cases=(
        Case("pixel_unshuffle/f32/n2-c5-h6-w8", "pixel_unshuffle", {"x": _PICTURE}),
        Case(
            "pixel_unshuffle/f32/three-n1-c2-h6-w9", "pixel_unshuffle", {"x": Recipe((1, 2, 6, 9))}, {"factor": 3}
        ),
    ),
)

PIXEL_SHUFFLE = Operation(
    "pixel_shuffle",
    "Undo pixel_unshuffle.",
    inputs={"x": IMAGE},
    output="[N, C/factor^2, H*factor, W*factor]",
    channel=1,
    params={"factor": 2},
    run=_pixel_shuffle,
    bound=movement,
    mutants=(
        Mutant("place before channel", read_channels("ijc")),
        Mutant("column before row", read_channels("cji")),
        SIDES_SWAPPED,
        BATCH,
        F16_INPUT,
    ),
    cases=(
        Case("pixel_shuffle/f32/n2-c20-h3-w5", "pixel_shuffle", {"x": Recipe((2, 20, 3, 5))}),
        Case("pixel_shuffle/f32/three-n1-c18-h2-w5", "pixel_shuffle", {"x": Recipe((1, 18, 2, 5))}, {"factor": 3}),
    ),
)

OPERATIONS = (PIXEL_UNSHUFFLE, PIXEL_SHUFFLE)
