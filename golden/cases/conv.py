"""Convolutions and what surrounds them in a UNet or a VAE: patches and nearest upsampling."""

from typing import NamedTuple

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


class _Shape(NamedTuple):
    label: str
    x: tuple[int, int, int, int]
    K: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int, int, int]
    data: str = "bell"


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
)


def _conv2d(s: _Shape, type: str) -> Case:
    N, C, H, W = s.x
    inputs = {
        "x": Recipe(s.x, data=s.data),
        "weight": Recipe((s.K, C, *s.kernel), type, exponent=-19),
        "bias": Recipe((s.K,)),
    }
    params = {"stride": s.stride, "padding": s.padding}
    return Case(f"conv2d/{type}/{s.label}-n{N}-c{C}-k{s.K}-h{H}-w{W}", "conv2d", inputs, params)


CASES = [
    *(_conv2d(s, t) for t in ("f32", "f16") for s in _SHAPES),
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
    Case("upsample_nearest/f32/x2-n2-c33-h5-w7", "upsample_nearest", {"x": Recipe((2, 33, 5, 7))}),
    Case("upsample_nearest/f32/x3-n1-c4-h6-w5", "upsample_nearest", {"x": Recipe((1, 4, 6, 5))}, {"factor": 3}),
]
