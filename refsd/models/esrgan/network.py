"""ESRGAN's upscaler, RRDBNet: sizes, tensors, names in files."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from refsd.networks.dimensions import Shape, Shapes, conv, count, has, read_size
from refsd.networks.keymap import Keymap, block_rows, prefix_rows
from refsd.networks.network import Layout, Location, Network, counted, same
from refsd.networks.recipe import alone


class ESRGANSize(NamedTuple):
    """Dimensions of RRDBNet; the defaults are Real-ESRGAN x4plus's.

    grow:        channels that each convolution of a dense block adds
    ups:         number of 2x upsamplings
    in_channels: the image's channels, times p^2 if a pixel unshuffle of p comes first
    """

    feat: int = 64
    grow: int = 32
    blocks: int = 23
    ups: int = 2
    in_channels: int = 3
    out_channels: int = 3


ESRGAN_X4 = ESRGANSize()
ESRGAN_X2 = ESRGANSize(in_channels=12)  # Real-ESRGAN's: 2 x 2 pixels are channels
ESRGAN_ANIME_6B = ESRGANSize(blocks=6)
_UPS = ("conv_up1", "conv_up2")


def esrgan_shapes(size: ESRGANSize) -> Shapes:
    """Return the shapes of all tensors. Source: XPixelGroup/BasicSR, rrdbnet_arch.py: RRDBNet."""
    D = size.feat
    shapes = conv("conv_first", size.in_channels, D)
    for i in range(size.blocks):
        for j in (1, 2, 3):
            for k in (1, 2, 3, 4, 5):
                shapes |= conv(f"body.{i}.rdb{j}.conv{k}", D + (k - 1) * size.grow, D if k == 5 else size.grow)
    for name in ("conv_body", *_UPS[: size.ups], "conv_hr"):
        shapes |= conv(name, D, D)
    return shapes | conv("conv_last", D, size.out_channels)


def esrgan_size(shapes: Mapping[str, Shape]) -> ESRGANSize:
    """Infer the size from shapes under BasicSR's names. Dimensions of missing tensors are x4plus's."""
    ups = sum(has(shapes, f"{name}.") for name in _UPS) if has(shapes, "conv_") else ESRGAN_X4.ups
    return read_size(ESRGAN_X4, esrgan_shapes, shapes, blocks=count(shapes, "body.", ESRGAN_X4.blocks), ups=ups)


# BasicSR's name, name in ESRGAN before Real-ESRGAN renamed the modules. Source: xinntao/ESRGAN, RRDBNet_arch.py.
_NAMED = (
    ("conv_first", "conv_first"),
    ("conv_body", "trunk_conv"),
    ("conv_up1", "upconv1"),
    ("conv_up2", "upconv2"),
    ("conv_hr", "HRconv"),
    ("conv_last", "conv_last"),
)
_DENSE = tuple((f"rdb{j}", f"RDB{j}") for j in (1, 2, 3))
# Scale -> (BasicSR's name, index in the nn.Sequential of the first release).
_NUMBERED = {
    1: (("conv_hr", 2), ("conv_last", 4)),
    2: (("conv_up1", 3), ("conv_hr", 5), ("conv_last", 7)),
    4: (("conv_up1", 3), ("conv_up2", 6), ("conv_hr", 8), ("conv_last", 10)),
}


def esrgan_named(blocks: int = 23) -> Keymap:
    """Map BasicSR's names to and from ESRGAN's of 2020. blocks: number of RRDBs"""
    return Keymap(prefix_rows(_NAMED) + block_rows(blocks, "body", "RRDB_trunk", _DENSE))


def esrgan_numbered(blocks: int = 23, scale: int = 4) -> Keymap:
    """Map BasicSR's names to and from ESRGAN's of 2018. blocks: number of RRDBs; scale: 1, 2 or 4"""
    ends = [("conv_first", 0), ("conv_body", f"1.sub.{blocks}"), *_NUMBERED[scale]]
    rows = prefix_rows((ours, f"model.{place}") for ours, place in ends)
    convs = [(f"{ours}.conv{k}", f"{theirs}.conv{k}.0") for ours, theirs in _DENSE for k in (1, 2, 3, 4, 5)]
    return Keymap(rows + block_rows(blocks, "body", "model.1.sub", convs))


def _numbered(names: Collection[str]) -> Keymap:
    last = count(names, "model.", 11) - 1
    scale = next((scale for scale, rows in _NUMBERED.items() if rows[-1][1] == last), 4)
    return esrgan_numbered(count(names, "model.1.sub.", 24) - 1, scale)


ESRGAN = Network(
    "esrgan",
    "ESRGAN",
    "upscaler",
    esrgan_size,
    esrgan_shapes,
    places=(
        Location(
            counted("old", esrgan_named, {"RRDB_trunk.": 23}, lambda size: (size.blocks,)), ("",), ("RRDB_trunk.",)
        ),
        Location(same("original"), ("",), ("conv_first.", "body.0.rdb1.")),
        Location(
            Layout("numbered", _numbered, lambda size: esrgan_numbered(size.blocks, 2**size.ups)),
            ("",),
            ("model.1.sub.",),
        ),
    ),
    recipes={
        "esrgan": alone("esrgan", ESRGAN_X4, ESRGAN_X4._replace(blocks=1), "esrgan"),
        "esrgan-x2": alone("esrgan", ESRGAN_X2, ESRGAN_X2._replace(feat=16, grow=8, blocks=3), "esrgan"),
    },
)
NETWORKS = (ESRGAN,)
