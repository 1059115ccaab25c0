"""Convolution of pictures; how far an engine may be off: `convolution_bound` in convolution.py."""

from refsd.golden.case import Case
from refsd.golden.mutations import SIDES_SWAPPED, other_input
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.operations.convolution import (
    MUTANTS,
    Geometry,
    channels_at,
    convolution_bound,
    convolution_case,
    dilation_ignored_along,
    geometry,
    moved_padding,
    pads_both_sides,
    pointwise_along_the_width,
    taps_by_height,
    weights,
    window_fits,
)
from refsd.golden.recipe import Recipe

_SHAPES = (
    Geometry("3x3", (2, 33, 9, 14), 20, (3, 3), 1, (1, 1, 1, 1)),
    Geometry("1x1", (2, 77, 5, 6), 33, (1, 1), 1, (0, 0, 0, 0)),
    Geometry("down", (2, 20, 11, 8), 33, (3, 3), 2, (1, 1, 1, 1)),
    Geometry("vae-down", (1, 33, 10, 16), 20, (3, 3), 2, (0, 1, 0, 1)),
    Geometry("5x3", (2, 7, 9, 13), 20, (5, 3), 1, (2, 2, 1, 1)),
    Geometry("latent", (2, 4, 12, 9), 40, (3, 3), 1, (1, 1, 1, 1)),
    Geometry("deep", (1, 320, 5, 7), 33, (3, 3), 1, (1, 1, 1, 1)),
    Geometry("patch", (2, 3, 28, 14), 20, (7, 7), 7, (0, 0, 0, 0)),
    Geometry("outliers", (1, 32, 9, 8), 20, (3, 3), 1, (1, 1, 1, 1), "outliers"),
    Geometry("dilated", (2, 20, 13, 11), 33, (3, 3), 1, (2, 2, 2, 2), dilation=2),
    Geometry("uneven", (1, 7, 14, 17), 20, (3, 2), (1, 2), (2, 2, 0, 1), dilation=(2, 1)),
    Geometry("sides", (1, 20, 9, 12), 7, (3, 3), 1, (2, 0, 1, 3)),
    Geometry("groups", (2, 24, 9, 11), 18, (3, 3), 1, (1, 1, 1, 1), groups=3),
    Geometry("depthwise", (2, 33, 9, 14), 33, (3, 3), 1, (1, 1, 1, 1), groups=33),
    Geometry("depthwise-down", (1, 20, 11, 9), 20, (5, 5), 2, (2, 2, 2, 2), groups=20),
    Geometry("depthwise-dilated", (1, 12, 11, 9), 12, (3, 3), 1, (2, 2, 2, 2), dilation=2, groups=12),
    Geometry("multiplied", (1, 6, 8, 7), 12, (3, 3), 1, (1, 1, 1, 1), groups=6),
    # A narrow picture without padding: vector instructions may read beside it.
    Geometry("narrow", (3, 64, 13, 4), 64, (3, 3), 2, (0, 0, 0, 0)),
    # As many channels as columns.
    Geometry("1x1-square", (2, 16, 5, 16), 16, (1, 1), 1, (0, 0, 0, 0)),
    Geometry("1x1-down", (2, 20, 9, 12), 33, (1, 1), 2, (0, 0, 0, 0)),
    # As many channels as rows and columns: the strides tell no layout.
    Geometry("cube", (2, 12, 12, 12), 20, (3, 3), 1, (1, 1, 1, 1)),
    # Channels in an odd number of blocks of 8.
    Geometry("1x1-blocks", (2, 40, 5, 6), 24, (1, 1), 1, (0, 0, 0, 0)),
    # More rows than 16 bits can count.
    Geometry("long", (1, 1, 65600, 2), 1, (3, 3), 1, (1, 1, 1, 1)),
    # Rows and columns beyond 1024 threads, of several channels and items.
    Geometry("wide", (2, 5, 6, 1031), 7, (3, 3), 1, (1, 1, 1, 1)),
    # Large enough for Winograd, and no multiple of a tile.
    Geometry("tiles", (1, 33, 33, 38), 34, (3, 3), 1, (1, 1, 1, 1)),
)

# One parameter with two numbers each, so that nothing else tells the exchange of the two.
_UNEVEN = (
    Geometry("uneven-stride", (1, 7, 9, 14), 5, (3, 3), (1, 2), (1, 1, 1, 1)),
    Geometry("uneven-dilation", (1, 7, 13, 11), 5, (3, 3), 1, (2, 2, 2, 2), dilation=(2, 1)),
    Geometry("uneven-filter", (1, 7, 9, 11), 5, (3, 1), 1, (1, 1, 1, 1)),
    Geometry("uneven-padding", (1, 7, 9, 11), 5, (3, 3), 1, (2, 2, 1, 1)),
)

# More channels and more filters than a block of threads takes at once.
_MANY = Geometry("many", (1, 352, 5, 6), 80, (3, 3), 1, (1, 1, 1, 1))

CONV2D = Operation(
    "conv2d",
    "Cross-correlate an image with filters; padding is (top, bottom, left, right), stride and dilation are a "
    "number or (down, across).",
    family="convolution",
    inputs={"x": IMAGE, "weight": "[K, C/groups, R, S]", "bias?": "[K]"},
    output="[N, K, P, Q]",
    channel=1,
    params={"stride": 1, "padding": (0, 0, 0, 0), "dilation": 1, "groups": 1},
    run=lambda a, inputs, params: a.conv2d(values(a, inputs["x"]), *weights(a, inputs), *geometry(params)),
    fits=window_fits,
    bound=convolution_bound,
    mutants=(
        Mutant("filter flipped", other_input("weight", lambda w: w[:, :, ::-1, ::-1])),
        SIDES_SWAPPED,
        *MUTANTS,
        Mutant("dilation ignored across", dilation_ignored_along(-1)),
        Mutant("dilation ignored down", dilation_ignored_along(-2)),
        Mutant("all padding at the end", moved_padding(lambda t, b, l, r: (0, 0))),
        Mutant("one pixel more of the padding at the beginning", moved_padding(lambda t, b, l, r: (t + 1, l + 1))),
        Mutant("padding of rows and columns swapped, as many outputs", moved_padding(lambda t, b, l, r: (l, t))),
        Mutant("padding on both sides", pads_both_sides),
        Mutant("taps of the filter counted by its height", taps_by_height),
        Mutant("channels 8 at a time, 4 apart (lanes)", channels_at(4, 8)),
        Mutant("channels 4 at a time, 8 apart (lanes)", channels_at(8, 4)),
        Mutant("1x1 filters along the width, not the channels", pointwise_along_the_width),
    ),
    cases=(
        *(convolution_case("conv2d", s, t) for t in ("f32", "f16") for s in _SHAPES),
        *(convolution_case("conv2d", s, "f32") for s in (*_UNEVEN, _MANY)),
        Case(
            "conv2d/f32/integers-n2-c5-k7-h6-w9",
            "conv2d",
            {
                "x": Recipe((2, 5, 6, 9), data="integers", exponent=0),
                "weight": Recipe((7, 5, 3, 3), data="integers", exponent=0),
            },
            {"padding": (1, 1, 1, 1)},
        ),
        # Pixels in float16's range, outputs beyond 65504.
        Case(
            "conv2d/f16/loud-n1-c64-k20-h9-w8",
            "conv2d",
            {
                "x": Recipe((1, 64, 9, 8), exponent=-1),
                "weight": Recipe((20, 64, 3, 3), "f16", exponent=-19),
                "bias": Recipe((20,)),
            },
            {"padding": (1, 1, 1, 1)},
        ),
        Case(
            "conv2d/f32/constant-n1-c6-k5-h7-w5",
            "conv2d",
            {"x": Recipe((1, 6, 7, 5), data="constant", offset=1.0), "weight": Recipe((5, 6, 3, 3), exponent=-19)},
            {"padding": (1, 1, 1, 1)},
        ),
    ),
)

OPERATIONS = (CONV2D,)
