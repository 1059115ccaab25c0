"""The tensors of a ControlNet of SD 1.x, SD 2.x or SDXL: every name and shape, and the size they tell."""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.architecture import SD15, SD21, SDXL, UNetSize, unet_shapes
from refsd.weights.layer_shapes import Shape, Shapes, conv
from refsd.weights.sizes import dim, unet_size

TRUNK = ("time_embed.", "label_emb.", "input_blocks.", "middle_block.")


class ControlNetSize(NamedTuple):
    """
    unet: whose first half is copied; its outputs are not there
    hint: how wide the hint's convolutions are, two of each, the last one but for the copy's own width
    """

    unet: UNetSize = SD15
    hint: tuple[int, ...] = (16, 32, 96, 256)
    hint_channels: int = 3


CONTROLNET_SD15 = ControlNetSize()
CONTROLNET_SD21 = ControlNetSize(SD21)
CONTROLNET_SDXL = ControlNetSize(SDXL)


def controlnet_shapes(size: ControlNetSize) -> Shapes:
    """lllyasviel/ControlNet, cldm.py: ControlNet."""
    unet, hint = size.unet, size.hint
    trunk = {name: shape for name, shape in unet_shapes(unet).items() if name.startswith(TRUNK)}
    last = len(unet.channel_mult) - 1
    outs = [unet.channels]
    for level, mult in enumerate(unet.channel_mult):
        outs += [mult * unet.channels] * (unet.res_blocks + (level != last))
    shapes = {name: shape for name, shape in trunk.items() if not name.startswith("middle_block.")}
    for i, channels in enumerate(outs):
        shapes |= conv(f"zero_convs.{i}.0", channels, channels, 1)
    shapes |= conv("input_hint_block.0", size.hint_channels, hint[0])
    for i, (inputs, outputs) in enumerate(itertools.pairwise(hint)):
        shapes |= conv(f"input_hint_block.{4 * i + 2}", inputs, inputs)
        shapes |= conv(f"input_hint_block.{4 * i + 4}", inputs, outputs)
    shapes |= conv(f"input_hint_block.{4 * len(hint) - 2}", hint[-1], unet.channels)
    shapes |= {name: shape for name, shape in trunk.items() if name.startswith("middle_block.")}
    return shapes | conv("middle_block_out.0", outs[-1], outs[-1], 1)


def controlnet_size(shapes: Mapping[str, Shape]) -> ControlNetSize:
    """From canonical names. What is missing is SD 1.5's."""
    usual = ControlNetSize()
    first = "input_hint_block.0"
    hint = list(usual.hint)
    for i in range(len(hint)):
        into, at = f"input_hint_block.{4 * i}.bias", f"input_hint_block.{4 * i + 2}.weight"
        hint[i] = dim(shapes, into, 0, dim(shapes, at, 1, hint[i]))
    return ControlNetSize(
        unet_size({name: shape for name, shape in shapes.items() if name.startswith(TRUNK)}),
        tuple(hint),
        dim(shapes, f"{first}.weight", 1, usual.hint_channels),
    )
