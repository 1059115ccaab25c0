"""The tensors of Stable Diffusion 1.x: every name and shape, in the order of the original file.

Names are the original checkpoint's without the component's prefix. Convolutions are [K, C, R, S],
linear layers [O, I].
"""

from typing import NamedTuple

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class UNetSize(NamedTuple):
    """channel_mult: one factor a level; attention: the levels that have transformer blocks."""

    channels: int = 320
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    attention: tuple[int, ...] = (0, 1, 2)
    res_blocks: int = 2
    context_dim: int = 768
    in_channels: int = 4
    out_channels: int = 4


class VAESize(NamedTuple):
    channels: int = 128
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    latent_channels: int = 4
    image_channels: int = 3


class CLIPSize(NamedTuple):
    hidden: int = 768
    layers: int = 12
    mlp: int = 3072
    vocab: int = 49408
    positions: int = 77


def sd15_shapes(
    unet_channels: int = 320,
    context_dim: int = 768,
    clip_hidden: int = 768,
    clip_layers: int = 12,
    vae_channels: int = 128,
) -> dict[str, Shapes]:
    """Every tensor of a checkpoint of SD 1.5's layout with these widths: component -> name -> shape."""
    return {
        "unet": unet_shapes(UNetSize(channels=unet_channels, context_dim=context_dim)),
        "vae": vae_shapes(VAESize(channels=vae_channels)),
        "clip": clip_shapes(CLIPSize(hidden=clip_hidden, layers=clip_layers, mlp=4 * clip_hidden)),
    }


def unet_shapes(size: UNetSize) -> Shapes:
    """The denoiser: openaimodel.UNetModel of CompVis/stable-diffusion, v1-inference.yaml."""
    ch, embed = size.channels, 4 * size.channels
    last = len(size.channel_mult) - 1
    shapes = {**_linear("time_embed.0", ch, embed), **_linear("time_embed.2", embed, embed)}
    shapes |= _conv("input_blocks.0.0", size.in_channels, ch)
    skips = [ch]
    n = 1
    for level, mult in enumerate(size.channel_mult):
        for _ in range(size.res_blocks):
            shapes |= _unet_res(f"input_blocks.{n}.0", ch, mult * size.channels, embed)
            ch = mult * size.channels
            if level in size.attention:
                shapes |= _transformer(f"input_blocks.{n}.1", ch, size.context_dim)
            skips.append(ch)
            n += 1
        if level != last:
            shapes |= _conv(f"input_blocks.{n}.0.op", ch, ch)
            skips.append(ch)
            n += 1
    shapes |= _unet_res("middle_block.0", ch, ch, embed)
    shapes |= _transformer("middle_block.1", ch, size.context_dim)
    shapes |= _unet_res("middle_block.2", ch, ch, embed)
    n = 0
    for level, mult in reversed(list(enumerate(size.channel_mult))):
        for i in range(size.res_blocks + 1):
            shapes |= _unet_res(f"output_blocks.{n}.0", ch + skips.pop(), mult * size.channels, embed)
            ch = mult * size.channels
            attends = level in size.attention
            if attends:
                shapes |= _transformer(f"output_blocks.{n}.1", ch, size.context_dim)
            if level and i == size.res_blocks:
                shapes |= _conv(f"output_blocks.{n}.{1 + attends}.conv", ch, ch)
            n += 1
    return shapes | _norm("out.0", ch) | _conv("out.2", ch, size.out_channels)


def vae_shapes(size: VAESize) -> Shapes:
    """The autoencoder: ldm.modules.diffusionmodules.model Encoder and Decoder, with 1x1 (post_)quant_conv."""
    levels = len(size.channel_mult)
    z = size.latent_channels
    ch = size.channels
    shapes = _conv("encoder.conv_in", size.image_channels, ch)
    for level, mult in enumerate(size.channel_mult):
        for i in range(size.res_blocks):
            shapes |= _vae_res(f"encoder.down.{level}.block.{i}", ch, mult * size.channels)
            ch = mult * size.channels
        if level != levels - 1:
            shapes |= _conv(f"encoder.down.{level}.downsample.conv", ch, ch)
    shapes |= _vae_middle("encoder.mid", ch)
    shapes |= _norm("encoder.norm_out", ch) | _conv("encoder.conv_out", ch, 2 * z)
    shapes |= _conv("decoder.conv_in", z, ch) | _vae_middle("decoder.mid", ch)
    for level, mult in reversed(list(enumerate(size.channel_mult))):
        for i in range(size.res_blocks + 1):
            shapes |= _vae_res(f"decoder.up.{level}.block.{i}", ch, mult * size.channels)
            ch = mult * size.channels
        if level:
            shapes |= _conv(f"decoder.up.{level}.upsample.conv", ch, ch)
    shapes |= _norm("decoder.norm_out", ch) | _conv("decoder.conv_out", ch, size.image_channels)
    return shapes | _conv("quant_conv", 2 * z, 2 * z, 1) | _conv("post_quant_conv", z, z, 1)


def clip_shapes(size: CLIPSize) -> Shapes:
    """The text encoder: transformers' CLIPTextModel."""
    d = size.hidden
    shapes: Shapes = {
        "text_model.embeddings.token_embedding.weight": (size.vocab, d),
        "text_model.embeddings.position_embedding.weight": (size.positions, d),
    }
    for i in range(size.layers):
        at = f"text_model.encoder.layers.{i}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= _linear(f"{at}.self_attn.{name}", d, d)
        shapes |= _norm(f"{at}.layer_norm1", d)
        shapes |= _linear(f"{at}.mlp.fc1", d, size.mlp) | _linear(f"{at}.mlp.fc2", size.mlp, d)
        shapes |= _norm(f"{at}.layer_norm2", d)
    return shapes | _norm("text_model.final_layer_norm", d)


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def _conv(name: str, inputs: int, outputs: int, side: int = 3) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, side, side), f"{name}.bias": (outputs,)}


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def _unet_res(at: str, inputs: int, outputs: int, embed: int) -> Shapes:
    shapes = _norm(f"{at}.in_layers.0", inputs) | _conv(f"{at}.in_layers.2", inputs, outputs)
    shapes |= _linear(f"{at}.emb_layers.1", embed, outputs)
    shapes |= _norm(f"{at}.out_layers.0", outputs) | _conv(f"{at}.out_layers.3", outputs, outputs)
    if inputs != outputs:
        shapes |= _conv(f"{at}.skip_connection", inputs, outputs, 1)
    return shapes


def _transformer(at: str, d: int, context_dim: int) -> Shapes:
    inner = f"{at}.transformer_blocks.0"
    shapes = _norm(f"{at}.norm", d) | _conv(f"{at}.proj_in", d, d, 1)
    shapes |= _attention(f"{inner}.attn1", d, d)
    shapes |= _linear(f"{inner}.ff.net.0.proj", d, 8 * d) | _linear(f"{inner}.ff.net.2", 4 * d, d)
    shapes |= _attention(f"{inner}.attn2", d, context_dim)
    for i in (1, 2, 3):
        shapes |= _norm(f"{inner}.norm{i}", d)
    return shapes | _conv(f"{at}.proj_out", d, d, 1)


def _attention(at: str, d: int, context_dim: int) -> Shapes:
    shapes = _linear(f"{at}.to_q", d, d, bias=False)
    shapes |= _linear(f"{at}.to_k", context_dim, d, bias=False)
    shapes |= _linear(f"{at}.to_v", context_dim, d, bias=False)
    return shapes | _linear(f"{at}.to_out.0", d, d)


def _vae_res(at: str, inputs: int, outputs: int) -> Shapes:
    shapes = _norm(f"{at}.norm1", inputs) | _conv(f"{at}.conv1", inputs, outputs)
    shapes |= _norm(f"{at}.norm2", outputs) | _conv(f"{at}.conv2", outputs, outputs)
    if inputs != outputs:
        shapes |= _conv(f"{at}.nin_shortcut", inputs, outputs, 1)
    return shapes


def _vae_middle(at: str, d: int) -> Shapes:
    shapes = _vae_res(f"{at}.block_1", d, d) | _norm(f"{at}.attn_1.norm", d)
    for name in ("q", "k", "v", "proj_out"):
        shapes |= _conv(f"{at}.attn_1.{name}", d, d, 1)
    return shapes | _vae_res(f"{at}.block_2", d, d)
