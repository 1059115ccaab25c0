"""The free dimensions of a component, read from its names and shapes. What they do not tell is SD 1.5's."""

from collections.abc import Iterable, Mapping

from refsd.weights.architecture import CLIPSize, Shape, UNetSize, VAESize

Shapes = Mapping[str, Shape]


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
    """From canonical names: how many levels, how wide, which attend."""
    usual = UNetSize()
    first = "input_blocks.0.0.weight"
    channels = dim(shapes, first, 0, usual.channels)
    blocks = count(shapes, "input_blocks.", 12)
    downs = [n for n in range(blocks) if f"input_blocks.{n}.0.op.weight" in shapes]
    step = downs[0] if downs else 0
    if step < 2 or downs != list(range(step, blocks, step)):
        step = usual.res_blocks + 1
    mults, attention, context = [], [], 0
    for level, n in enumerate(range(1, blocks, step)):
        mults.append(_mult(shapes, f"input_blocks.{n}.0.in_layers.2.weight", channels, usual.channel_mult, level))
        attending = [i for i in range(n, n + step - 1) if f"input_blocks.{i}.1.norm.weight" in shapes]
        if attending:
            attention.append(level)
            to_k = f"input_blocks.{attending[0]}.1.transformer_blocks.0.attn2.to_k.weight"
            context = context or dim(shapes, to_k, 1, 0)
    return UNetSize(
        channels=channels,
        channel_mult=tuple(mults),
        attention=tuple(attention),
        res_blocks=step - 1,
        context_dim=context or usual.context_dim,
        in_channels=dim(shapes, first, 1, usual.in_channels),
        out_channels=dim(shapes, "out.2.weight", 0, usual.out_channels),
    )


def vae_size(shapes: Shapes) -> VAESize:
    """From canonical names: the encoder's."""
    usual = VAESize()
    channels = dim(shapes, "encoder.conv_in.weight", 0, usual.channels)
    levels = count(shapes, "encoder.down.", len(usual.channel_mult))
    mults = [
        _mult(shapes, f"encoder.down.{level}.block.0.conv1.weight", channels, usual.channel_mult, level)
        for level in range(levels)
    ]
    return VAESize(
        channels=channels,
        channel_mult=tuple(mults),
        res_blocks=count(shapes, "encoder.down.0.block.", usual.res_blocks),
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, usual.latent_channels),
        image_channels=dim(shapes, "encoder.conv_in.weight", 1, usual.image_channels),
    )


def clip_size(shapes: Shapes) -> CLIPSize:
    """From canonical names."""
    usual = CLIPSize()
    tokens = "text_model.embeddings.token_embedding.weight"
    hidden = dim(shapes, tokens, 1, usual.hidden)
    return CLIPSize(
        hidden=hidden,
        layers=count(shapes, "text_model.encoder.layers.", usual.layers),
        mlp=dim(shapes, "text_model.encoder.layers.0.mlp.fc1.weight", 0, 4 * hidden),
        vocab=dim(shapes, tokens, 0, usual.vocab),
        positions=dim(shapes, "text_model.embeddings.position_embedding.weight", 0, usual.positions),
    )


def dim(shapes: Shapes, name: str, axis: int, default: int) -> int:
    """One dimension; the default where the tensor is missing or has no such one."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) and shape[axis] > 0 else default


def has(shapes: Shapes, prefix: str) -> bool:
    """Whether any name begins so."""
    return any(name.startswith(prefix) for name in shapes)


def _mult(shapes: Shapes, name: str, channels: int, usual: tuple[int, ...], level: int) -> int:
    default = usual[min(level, len(usual) - 1)] * channels
    return max(1, dim(shapes, name, 0, default) // channels)
