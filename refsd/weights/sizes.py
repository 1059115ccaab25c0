"""The free dimensions of a component, read from its names and shapes. What they do not tell is SD 1.5's."""

import re
from collections.abc import Iterable, Mapping

from refsd.weights.architecture import SDXL, CLIPSize, Shape, UNetSize, VAESize, unet_depths

Shapes = Mapping[str, Shape]

TRANSFORMER = re.compile(r"(middle_block|(?:in|out)put_blocks\.[0-9]{1,2})\.1\.transformer_blocks\.([0-9]{1,2})\.")
CROSSING = ("attn2.to_k.weight", "attn2.to_v.weight")
LEAVES = ("weight", "bias")


def count(names: Iterable[str], prefix: str, default: int) -> int:
    """One more than the highest number that follows `prefix` in a name.

    Numbers have up to two digits: one name must not make a large table.
    """
    found = -1
    for name in names:
        if name.startswith(prefix):
            digits = name[len(prefix) :].partition(".")[0]
            if digits.isascii() and digits.isdigit() and len(digits) <= 2:
                found = max(found, int(digits))
    return found + 1 or default


def unet_size(shapes: Shapes) -> UNetSize:
    """From canonical names: how many levels, how wide, and where transformers stand, how deep.

    Without output blocks, as in a ControlNet, the way up is taken to be the way down.
    """
    usual = UNetSize()
    if not has(shapes, "input_blocks."):
        return usual
    first, label = "input_blocks.0.0", "label_emb.0.0.weight"
    channels = dim(shapes, f"{first}.weight", 0, dim(shapes, f"{first}.bias", 0, usual.channels))
    blocks = count(shapes, "input_blocks.", 12)
    downs = [n for n in range(blocks) if any(f"input_blocks.{n}.0.op.{leaf}" in shapes for leaf in LEAVES)]
    step = downs[0] if downs else blocks if blocks > 1 else 0
    if step < 2 or downs != list(range(step, blocks, step)):
        step = usual.res_blocks + 1
    starts = list(enumerate(range(1, blocks, step)))
    mults = [
        _mult(shapes, f"input_blocks.{n}.0.in_layers.2.weight", channels, usual.channel_mult, level)
        for level, n in starts
    ]
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
        channel_mult=tuple(mults),
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


def transformer_depths(shapes: Shapes) -> dict[str, int]:
    """Block that has a transformer ("input_blocks.4", "middle_block") -> how many it has, one after the other."""
    found: dict[str, set[int]] = {}
    for name in shapes:
        if match := TRANSFORMER.match(name):
            found.setdefault(match[1], set()).add(int(match[2]))
    return {at: next(n for n in range(len(numbers) + 1) if n not in numbers) for at, numbers in found.items()}


def _crosses(shapes: Shapes, start: int, step: int, context: int) -> bool:
    """Whether a level's first attention takes what is as wide as the context, and not as its queries."""
    for n in range(start, start + step - 1):
        for part in "kv":
            shape = shapes.get(f"input_blocks.{n}.1.transformer_blocks.0.attn1.to_{part}.weight", ())
            if len(shape) == 2:
                return shape[1] == context != shape[0]
    return False


def vae_size(shapes: Shapes) -> VAESize:
    """From canonical names. An encoder alone, or a decoder, is taken for the half of a whole."""
    usual = VAESize()
    into, out = "encoder.conv_in", "decoder.norm_out"
    decoder = dim(shapes, f"{out}.weight", 0, dim(shapes, f"{out}.bias", 0, usual.channels))
    channels = dim(shapes, f"{into}.weight", 0, dim(shapes, f"{into}.bias", 0, decoder))
    levels = count(shapes, "encoder.down.", count(shapes, "decoder.up.", len(usual.channel_mult)))
    half = "encoder.down" if has(shapes, "encoder.down.") else "decoder.up"
    mults = [
        _mult(shapes, f"{half}.{level}.block.0.conv1.weight", channels, usual.channel_mult, level)
        for level in range(levels)
    ]
    latents = dim(shapes, "encoder.conv_out.bias", 0, 2 * usual.latent_channels) // 2
    up = count(shapes, "decoder.up.0.block.", usual.res_blocks + 1) - 1
    return VAESize(
        channels=channels,
        channel_mult=tuple(mults),
        res_blocks=count(shapes, "encoder.down.0.block.", max(1, up)),
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, max(1, latents)),
        image_channels=dim(shapes, f"{into}.weight", 1, usual.image_channels),
        quant_convs=has(shapes, ("quant_conv.", "post_quant_conv.")) or not has(shapes, ("encoder.", "decoder.")),
    )


def clip_size(shapes: Shapes) -> CLIPSize:
    """From canonical names."""
    usual = CLIPSize()
    tokens = "text_model.embeddings.token_embedding.weight"
    positions = "text_model.embeddings.position_embedding.weight"
    hidden = dim(shapes, tokens, 1, dim(shapes, "text_model.final_layer_norm.weight", 0, usual.hidden))
    return CLIPSize(
        hidden=hidden,
        layers=count(shapes, "text_model.encoder.layers.", usual.layers),
        mlp=dim(shapes, "text_model.encoder.layers.0.mlp.fc1.weight", 0, 4 * hidden),
        vocab=dim(shapes, tokens, 0, usual.vocab),
        positions=dim(shapes, positions, 0, usual.positions),
        projection=dim(shapes, "text_projection.weight", 0, 0),
    )


def dim(shapes: Shapes, name: str, axis: int, default: int) -> int:
    """One dimension; the default where the tensor is missing or has no such one."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) and shape[axis] > 0 else default


def has(shapes: Shapes, prefix: str | tuple[str, ...]) -> bool:
    """Whether any name begins so."""
    return any(name.startswith(prefix) for name in shapes)


def _mult(shapes: Shapes, name: str, channels: int, usual: tuple[int, ...], level: int) -> int:
    default = usual[min(level, len(usual) - 1)] * channels
    return max(1, dim(shapes, name, 0, default) // channels)
