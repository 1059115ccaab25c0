"""Tensors of the UNets of Stable Diffusion 1.x, 2.x and SDXL, and the size that follows from their shapes.

Names are the original checkpoint's, without the component's prefix. Convolutions are [K, C, R, S], linear layers
[O, I]. What names and shapes do not reveal is assumed as in SD 1.5.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from refsd.networks.dimensions import Shape, Shapes, bare, conv, count, dim, has, level_width, linear, norm


class UNetSize(NamedTuple):
    """Dimensions of a UNet; the defaults are SD 1.5's.

    channels:   channels of the first convolution
    widths:     channels of each level
    attention:  levels with transformers
    linear:     True if the transformers' projections are linear layers, False if convolutions
    label:      channels of `y`; 0: there is no label embedding
    down:       depths of the encoder's transformers, by level and res block; 0: no transformer; (): depth 1 in the
                levels of `attention`
    middle:     depth of the middle block's transformer; 0: a single res block alone; None: no middle block
    up:         depths of the decoder's transformers, by level (in the order of `down`) and res block, of which each
                level has one more; (): the last depth of the same level of `down`
    cross_only: levels whose self-attention attends to the context instead
    """

    channels: int = 320
    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    attention: tuple[int, ...] = (0, 1, 2)
    res_blocks: int = 2
    context_dim: int = 768
    in_channels: int = 4
    out_channels: int = 4
    linear: bool = False
    label: int = 0
    down: tuple[tuple[int, ...], ...] = ()
    middle: int | None = 1
    up: tuple[tuple[int, ...], ...] = ()
    cross_only: tuple[int, ...] = ()


SD15 = UNetSize()
SD15_INPAINT = SD15._replace(in_channels=9)
PIX2PIX = SD15._replace(in_channels=8)
SD21 = UNetSize(context_dim=1024, linear=True)
SD2_INPAINT = SD21._replace(in_channels=9)
SDXL = UNetSize(
    widths=(320, 640, 1280),
    attention=(1, 2),
    context_dim=2048,
    linear=True,
    label=2816,
    down=((0, 0), (2, 2), (10, 10)),
    middle=10,
)
SDXL_INPAINT = SDXL._replace(in_channels=9)
SDXL_PIX2PIX = SDXL._replace(in_channels=8)
SDXL_REFINER = UNetSize(
    channels=384,
    widths=(384, 768, 1536, 1536),
    attention=(1, 2),
    context_dim=1280,
    linear=True,
    label=2560,
    down=((0, 0), (4, 4), (4, 4), (0, 0)),
    middle=4,
)
SSD_1B = SDXL._replace(down=((0, 0), (2, 2), (4, 4)), middle=0, up=((0, 0, 0), (2, 1, 1), (4, 4, 10)))
VEGA = SDXL._replace(down=((0, 0), (1, 1), (2, 2)), middle=0)
TINY_SD = UNetSize(widths=(320, 640, 1280), res_blocks=1, middle=None)
# SDXS-512-DreamShaper's config.json has attention_head_dim 8, which means 8 heads, as in SD 1. ComfyUI assumes
# heads of 64 channels.
SDXS_512 = TINY_SD._replace(attention=(1, 2))
SDXS_09 = TINY_SD._replace(context_dim=1024, linear=True, cross_only=(0,))
UNETS = {
    "sd15": SD15,
    "sd15-inpaint": SD15_INPAINT,
    "pix2pix": PIX2PIX,
    "sd21": SD21,
    "sd2-inpaint": SD2_INPAINT,
    "sdxl": SDXL,
    "sdxl-inpaint": SDXL_INPAINT,
    "sdxl-pix2pix": SDXL_PIX2PIX,
    "sdxl-refiner": SDXL_REFINER,
    "ssd-1b": SSD_1B,
    "vega": VEGA,
    "tiny-sd": TINY_SD,
    "sdxs-512": SDXS_512,
    "sdxs-09": SDXS_09,
}


def unet_shapes(size: UNetSize) -> Shapes:
    """Return the shapes of all tensors.

    Source: openaimodel.UNetModel of CompVis/stable-diffusion and Stability-AI/generative-models.
    """
    ch, embed = size.channels, 4 * size.channels
    last = len(size.widths) - 1
    down, up = unet_depths(size)
    shapes = {**linear("time_embed.0", ch, embed), **linear("time_embed.2", embed, embed)}
    if size.label:
        shapes |= linear("label_emb.0.0", size.label, embed) | linear("label_emb.0.2", embed, embed)
    shapes |= conv("input_blocks.0.0", size.in_channels, ch)
    skips = [ch]
    n = 1
    for level, width in enumerate(size.widths):
        for depth in down[level]:
            shapes |= _unet_res(f"input_blocks.{n}.0", ch, width, embed)
            ch = width
            shapes |= _transformer(f"input_blocks.{n}.1", ch, size, depth, level)
            skips.append(ch)
            n += 1
        if level != last:
            shapes |= conv(f"input_blocks.{n}.0.op", ch, ch)
            skips.append(ch)
            n += 1
    if size.middle is not None:
        shapes |= _unet_res("middle_block.0", ch, ch, embed)
    if size.middle:
        shapes |= _transformer("middle_block.1", ch, size, size.middle, last)
        shapes |= _unet_res("middle_block.2", ch, ch, embed)
    n = 0
    for level, width in reversed(list(enumerate(size.widths))):
        for i, depth in enumerate(up[level]):
            shapes |= _unet_res(f"output_blocks.{n}.0", ch + skips.pop(), width, embed)
            ch = width
            shapes |= _transformer(f"output_blocks.{n}.1", ch, size, depth, level)
            if level and i == size.res_blocks:
                shapes |= conv(f"output_blocks.{n}.{1 + (depth > 0)}.conv", ch, ch)
            n += 1
    return shapes | norm("out.0", ch) | conv("out.2", ch, size.out_channels)


def unet_depths(size: UNetSize) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return `down` and `up` of a size with their defaults filled in."""
    levels = range(len(size.widths))
    down = size.down or tuple((int(level in size.attention),) * size.res_blocks for level in levels)
    return down, size.up or tuple((depths[-1],) * (size.res_blocks + 1) for depths in down)


def attending(size: UNetSize) -> list[int]:
    """Return the levels with a transformer in the encoder, the middle block or the decoder."""
    down, up = unet_depths(size)
    middle = [()] * (len(size.widths) - 1) + [(size.middle or 0,)]
    return [level for level, depths in enumerate(zip(down, middle, up, strict=True)) if any(map(any, depths))]


def _unet_res(at: str, inputs: int, outputs: int, embed: int) -> Shapes:
    shapes = norm(f"{at}.in_layers.0", inputs) | conv(f"{at}.in_layers.2", inputs, outputs)
    shapes |= linear(f"{at}.emb_layers.1", embed, outputs)
    shapes |= norm(f"{at}.out_layers.0", outputs) | conv(f"{at}.out_layers.3", outputs, outputs)
    if inputs != outputs:
        shapes |= conv(f"{at}.skip_connection", inputs, outputs, 1)
    return shapes


def _transformer(at: str, d: int, size: UNetSize, depth: int, level: int) -> Shapes:
    """Return the shapes of a SpatialTransformer of `depth` blocks; {} for depth 0."""
    if not depth:
        return {}
    side = () if size.linear else (1, 1)
    project = {"weight": (d, d, *side), "bias": (d,)}
    shapes = norm(f"{at}.norm", d) | {f"{at}.proj_in.{leaf}": shape for leaf, shape in project.items()}
    for i in range(depth):
        inner = f"{at}.transformer_blocks.{i}"
        shapes |= _attention(f"{inner}.attn1", d, size.context_dim if level in size.cross_only else d)
        shapes |= linear(f"{inner}.ff.net.0.proj", d, 8 * d) | linear(f"{inner}.ff.net.2", 4 * d, d)
        shapes |= _attention(f"{inner}.attn2", d, size.context_dim)
        for j in (1, 2, 3):
            shapes |= norm(f"{inner}.norm{j}", d)
    return shapes | {f"{at}.proj_out.{leaf}": shape for leaf, shape in project.items()}


def _attention(at: str, d: int, context_dim: int) -> Shapes:
    shapes = bare(f"{at}.to_q", d, d)
    shapes |= bare(f"{at}.to_k", context_dim, d)
    shapes |= bare(f"{at}.to_v", context_dim, d)
    return shapes | linear(f"{at}.to_out.0", d, d)


TRANSFORMER = re.compile(r"(middle_block|(?:in|out)put_blocks\.[0-9]{1,2})\.1\.transformer_blocks\.([0-9]{1,2})\.")
CROSSING = ("attn2.to_k.weight", "attn2.to_v.weight")
_LEAVES = ("weight", "bias")


def unet_size(shapes: Mapping[str, Shape]) -> UNetSize:
    """Infer the size from shapes under the original's names: levels, widths, places and depths of transformers.

    If there are no output blocks, as in a ControlNet, the decoder is assumed to mirror the encoder.
    """
    usual = UNetSize()
    if not has(shapes, "input_blocks."):
        return usual
    first, label = "input_blocks.0.0", "label_emb.0.0.weight"
    channels = dim(shapes, f"{first}.weight", 0, dim(shapes, f"{first}.bias", 0, usual.channels))
    blocks = count(shapes, "input_blocks.", 12)
    downs = [n for n in range(blocks) if any(f"input_blocks.{n}.0.op.{leaf}" in shapes for leaf in _LEAVES)]
    step = downs[0] if downs else blocks if blocks > 1 else 0
    if step < 2 or downs != list(range(step, blocks, step)):
        step = usual.res_blocks + 1
    starts = list(enumerate(range(1, blocks, step)))
    widths = [level_width(shapes, f"input_blocks.{n}.0.in_layers.2", channels, level) for level, n in starts]
    depth = transformer_depths(shapes)
    down = tuple(tuple(depth.get(f"input_blocks.{i}", 0) for i in range(n, n + step - 1)) for _, n in starts)
    levels = len(starts)
    up = tuple(
        tuple(depth.get(f"output_blocks.{(levels - 1 - level) * step + i}", 0) for i in range(step))
        for level in range(levels)
    )
    crossing = {name: shapes[name][1] for name in shapes if name.endswith(CROSSING) and len(shapes[name]) == 2}
    context = next((width for width in crossing.values() if width > 0), usual.context_dim)
    middle = depth.get("middle_block", 0) if has(shapes, "middle_block.") else None
    projections = [shapes[name] for name in shapes if name.endswith(".proj_in.weight")]
    size = UNetSize(
        channels=channels,
        widths=tuple(widths),
        attention=tuple(level for level in range(levels) if any(down[level])),
        res_blocks=step - 1,
        context_dim=context,
        in_channels=dim(shapes, f"{first}.weight", 1, usual.in_channels),
        out_channels=dim(shapes, "out.2.weight", 0, usual.out_channels),
        linear=any(len(shape) == 2 for shape in projections),
        label=dim(shapes, label, 1, SDXL.label) if has(shapes, "label_emb.") else 0,
        middle=middle,
        cross_only=tuple(level for level, n in starts if _crosses(shapes, n, step, context)),
    )
    if down != unet_depths(size)[0]:
        size = size._replace(down=down)
    if has(shapes, "output_blocks.") and up != unet_depths(size)[1]:
        size = size._replace(up=up)
    return size


def transformer_depths(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the depth of the transformer of each block that has one ("input_blocks.4", "middle_block")."""
    found: dict[str, set[int]] = {}
    for name in shapes:
        if match := TRANSFORMER.match(name):
            found.setdefault(match[1], set()).add(int(match[2]))
    return {at: next(n for n in range(len(numbers) + 1) if n not in numbers) for at, numbers in found.items()}


def _crosses(shapes: Mapping[str, Shape], start: int, step: int, context: int) -> bool:
    """True if the inputs of k and v in a level's first attn1 have the context's width and not the level's."""
    for n in range(start, start + step - 1):
        for part in "kv":
            shape = shapes.get(f"input_blocks.{n}.1.transformer_blocks.0.attn1.to_{part}.weight", ())
            if len(shape) == 2:
                return shape[1] == context != shape[0]
    return False
