"""The tensors of ESRGAN's RRDBNet: every name and shape, and the size they tell."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes, conv
from refsd.weights.sizes import count, dim, has


class ESRGANSize(NamedTuple):
    """Real-ESRGAN x4plus's unless given.

    grow:        channels each convolution of a dense block adds
    ups:         how often the size is doubled
    in_channels: the picture's, times those of a square of pixels where they are taken as channels first
    """

    feat: int = 64
    grow: int = 32
    blocks: int = 23
    ups: int = 2
    in_channels: int = 3
    out_channels: int = 3


ESRGAN_X4 = ESRGANSize()
ESRGAN_ANIME_6B = ESRGANSize(blocks=6)
UPS = ("conv_up1", "conv_up2")


def esrgan_shapes(size: ESRGANSize) -> Shapes:
    """XPixelGroup/BasicSR, rrdbnet_arch.py: RRDBNet."""
    D = size.feat
    shapes = conv("conv_first", size.in_channels, D)
    for i in range(size.blocks):
        for j in (1, 2, 3):
            for k in (1, 2, 3, 4, 5):
                shapes |= conv(f"body.{i}.rdb{j}.conv{k}", D + (k - 1) * size.grow, D if k == 5 else size.grow)
    for name in ("conv_body", *UPS[: size.ups], "conv_hr"):
        shapes |= conv(name, D, D)
    return shapes | conv("conv_last", D, size.out_channels)


def esrgan_size(shapes: Mapping[str, Shape]) -> ESRGANSize:
    """From canonical names. What is missing is x4plus's."""
    usual = ESRGANSize()
    first, grow, last = "conv_first", "body.0.rdb1.conv1", "conv_last"
    ups = sum(has(shapes, f"{name}.") for name in UPS)
    return ESRGANSize(
        feat=dim(shapes, f"{first}.weight", 0, dim(shapes, f"{first}.bias", 0, usual.feat)),
        grow=dim(shapes, f"{grow}.weight", 0, dim(shapes, f"{grow}.bias", 0, usual.grow)),
        blocks=count(shapes, "body.", usual.blocks),
        ups=ups if has(shapes, "conv_") else usual.ups,
        in_channels=dim(shapes, f"{first}.weight", 1, usual.in_channels),
        out_channels=dim(shapes, f"{last}.weight", 0, dim(shapes, f"{last}.bias", 0, usual.out_channels)),
    )
