"""Convolutions of pictures and videos, and what surrounds them in a UNet or a VAE: patches, nearest upsampling."""

from typing import NamedTuple

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


class _Shape(NamedTuple):
    label: str
    x: tuple[int, int, int, int]
    K: int
    kernel: tuple[int, int]
    stride: int | tuple[int, int]
    padding: tuple[int, int, int, int]
    data: str = "bell"
    dilation: int | tuple[int, int] = 1
    groups: int = 1


_SHAPES = (
    _Shape("3x3", (2, 33, 9, 14), 20, (3, 3), 1, (1, 1, 1, 1)),
    _Shape("1x1", (2, 77, 5, 6), 33, (1, 1), 1, (0, 0, 0, 0)),
    _Shape("down", (2, 20, 11, 8), 33, (3, 3), 2, (1, 1, 1, 1)),
    _Shape("vae-down", (1, 33, 10, 16), 20, (3, 3), 2, (0, 1, 0, 1)),
    _Shape("5x3", (2, 7, 9, 13), 20, (5, 3), 1, (2, 2, 1, 1)),
    _Shape("latent", (2, 4, 12, 9), 40, (3, 3), 1, (1, 1, 1, 1)),
    _Shape("deep", (1, 320, 5, 7), 33, (3, 3), 1, (1, 1, 1, 1)),
    _Shape("patch", (2, 3, 28, 14), 20, (7, 7), 7, (0, 0, 0, 0)),
    _Shape("outliers", (1, 32, 9, 8), 20, (3, 3), 1, (1, 1, 1, 1), "outliers"),
    _Shape("dilated", (2, 20, 13, 11), 33, (3, 3), 1, (2, 2, 2, 2), dilation=2),
    _Shape("uneven", (1, 7, 14, 17), 20, (3, 2), (1, 2), (2, 2, 0, 1), dilation=(2, 1)),
    _Shape("sides", (1, 20, 9, 12), 7, (3, 3), 1, (2, 0, 1, 3)),
    _Shape("groups", (2, 24, 9, 11), 18, (3, 3), 1, (1, 1, 1, 1), groups=3),
    _Shape("depthwise", (2, 33, 9, 14), 33, (3, 3), 1, (1, 1, 1, 1), groups=33),
    _Shape("depthwise-down", (1, 20, 11, 9), 20, (5, 5), 2, (2, 2, 2, 2), groups=20),
    _Shape("multiplied", (1, 6, 8, 7), 12, (3, 3), 1, (1, 1, 1, 1), groups=6),
    # Large enough for Winograd, and no multiple of a tile.
    _Shape("tiles", (1, 33, 33, 38), 34, (3, 3), 1, (1, 1, 1, 1)),
)


class _Volume(NamedTuple):
    label: str
    x: tuple[int, int, int, int, int]
    K: int
    kernel: tuple[int, int, int]
    stride: int | tuple[int, int, int]
    padding: tuple[int, int, int, int, int, int]
    dilation: int | tuple[int, int, int] = 1
    groups: int = 1


_VOLUMES = (
    _Volume("3x3x3", (2, 6, 5, 7, 9), 8, (3, 3, 3), 1, (1, 1, 1, 1, 1, 1)),
    _Volume("causal", (1, 20, 4, 6, 7), 7, (3, 3, 3), 1, (2, 0, 1, 1, 1, 1)),
    _Volume("down", (1, 7, 5, 8, 11), 6, (3, 3, 3), (1, 2, 2), (2, 0, 0, 1, 0, 1)),
    _Volume("time-down", (2, 9, 7, 3, 5), 5, (3, 1, 1), (2, 1, 1), (0, 0, 0, 0, 0, 0)),
    _Volume("dilated", (1, 5, 6, 7, 8), 4, (3, 2, 3), 1, (2, 2, 0, 1, 1, 1), dilation=(2, 1, 1)),
    _Volume("groups", (1, 6, 3, 5, 7), 4, (2, 3, 3), 1, (1, 0, 1, 1, 1, 1), groups=2),
    _Volume("patch", (1, 4, 2, 8, 6), 20, (1, 2, 2), (1, 2, 2), (0, 0, 0, 0, 0, 0)),
)


def _convolution(op: str, s: _Shape | _Volume, type: str) -> Case:
    inputs = {
        "x": Recipe(s.x, data=getattr(s, "data", "bell")),
        "weight": Recipe((s.K, s.x[1] // s.groups, *s.kernel), type, exponent=-19),
        "bias": Recipe((s.K,)),
    }
    params = {"stride": s.stride, "padding": s.padding}
    if s.dilation != 1:
        params["dilation"] = s.dilation
    if s.groups != 1:
        params["groups"] = s.groups
    N, C, *depth, H, W = s.x
    deep = f"-d{depth[0]}" if depth else ""
    return Case(f"{op}/{type}/{s.label}-n{N}-c{C}-k{s.K}{deep}-h{H}-w{W}", op, inputs, params)


CASES = [
    *(_convolution("conv2d", s, t) for t in ("f32", "f16") for s in _SHAPES),
    *(_convolution("conv3d", s, t) for t in ("f32", "f16") for s in _VOLUMES),
    Case(
        "conv2d/f32/integers-n2-c5-k7-h6-w9",
        "conv2d",
        {
            "x": Recipe((2, 5, 6, 9), data="integers", exponent=0),
            "weight": Recipe((7, 5, 3, 3), data="integers", exponent=0),
        },
        {"padding": (1, 1, 1, 1)},
    ),
    Case(
        "conv2d/f32/constant-n1-c6-k5-h7-w5",
        "conv2d",
        {"x": Recipe((1, 6, 7, 5), data="constant", offset=1.0), "weight": Recipe((5, 6, 3, 3), exponent=-19)},
        {"padding": (1, 1, 1, 1)},
    ),
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
    Case("upsample_nearest/f32/x2-n2-c33-h5-w7", "upsample_nearest", {"x": Recipe((2, 33, 5, 7))}),
    Case("upsample_nearest/f32/x3-n1-c4-h6-w5", "upsample_nearest", {"x": Recipe((1, 4, 6, 5))}, {"factor": 3}),
]
