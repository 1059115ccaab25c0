"""The tensors of Stable Diffusion 1.x: every name and shape, in the order of the original file.

Names are the original checkpoint's without the component's prefix. Convolutions are [K, C, R, S],
linear layers [O, I].
"""

from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes, conv, linear, norm

__all__ = [
    "CLIPSize",
    "Shape",
    "Shapes",
    "UNetSize",
    "VAESize",
    "clip_shapes",
    "sd15_shapes",
    "unet_shapes",
    "vae_shapes",
]


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
    shapes = {**linear("time_embed.0", ch, embed), **linear("time_embed.2", embed, embed)}
    shapes |= conv("input_blocks.0.0", size.in_channels, ch)
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
            shapes |= conv(f"input_blocks.{n}.0.op", ch, ch)
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
                shapes |= conv(f"output_blocks.{n}.{1 + attends}.conv", ch, ch)
            n += 1
    return shapes | norm("out.0", ch) | conv("out.2", ch, size.out_channels)


def vae_shapes(size: VAESize) -> Shapes:
    """The autoencoder: ldm.modules.diffusionmodules.model Encoder and Decoder, with 1x1 (post_)quant_conv."""
    levels = len(size.channel_mult)
    z = size.latent_channels
    ch = size.channels
    shapes = conv("encoder.conv_in", size.image_channels, ch)
    for level, mult in enumerate(size.channel_mult):
        for i in range(size.res_blocks):
            shapes |= _vae_res(f"encoder.down.{level}.block.{i}", ch, mult * size.channels)
            ch = mult * size.channels
        if level != levels - 1:
            shapes |= conv(f"encoder.down.{level}.downsample.conv", ch, ch)
    shapes |= _vae_middle("encoder.mid", ch)
    shapes |= norm("encoder.norm_out", ch) | conv("encoder.conv_out", ch, 2 * z)
    shapes |= conv("decoder.conv_in", z, ch) | _vae_middle("decoder.mid", ch)
    for level, mult in reversed(list(enumerate(size.channel_mult))):
        for i in range(size.res_blocks + 1):
            shapes |= _vae_res(f"decoder.up.{level}.block.{i}", ch, mult * size.channels)
            ch = mult * size.channels
        if level:
            shapes |= conv(f"decoder.up.{level}.upsample.conv", ch, ch)
    shapes |= norm("decoder.norm_out", ch) | conv("decoder.conv_out", ch, size.image_channels)
    return shapes | conv("quant_conv", 2 * z, 2 * z, 1) | conv("post_quant_conv", z, z, 1)


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
            shapes |= linear(f"{at}.self_attn.{name}", d, d)
        shapes |= norm(f"{at}.layer_norm1", d)
        shapes |= linear(f"{at}.mlp.fc1", d, size.mlp) | linear(f"{at}.mlp.fc2", size.mlp, d)
        shapes |= norm(f"{at}.layer_norm2", d)
    return shapes | norm("text_model.final_layer_norm", d)


def _unet_res(at: str, inputs: int, outputs: int, embed: int) -> Shapes:
    shapes = norm(f"{at}.in_layers.0", inputs) | conv(f"{at}.in_layers.2", inputs, outputs)
    shapes |= linear(f"{at}.emb_layers.1", embed, outputs)
    shapes |= norm(f"{at}.out_layers.0", outputs) | conv(f"{at}.out_layers.3", outputs, outputs)
    if inputs != outputs:
        shapes |= conv(f"{at}.skip_connection", inputs, outputs, 1)
    return shapes


def _transformer(at: str, d: int, context_dim: int) -> Shapes:
    inner = f"{at}.transformer_blocks.0"
    shapes = norm(f"{at}.norm", d) | conv(f"{at}.proj_in", d, d, 1)
    shapes |= _attention(f"{inner}.attn1", d, d)
    shapes |= linear(f"{inner}.ff.net.0.proj", d, 8 * d) | linear(f"{inner}.ff.net.2", 4 * d, d)
    shapes |= _attention(f"{inner}.attn2", d, context_dim)
    for i in (1, 2, 3):
        shapes |= norm(f"{inner}.norm{i}", d)
    return shapes | conv(f"{at}.proj_out", d, d, 1)


def _attention(at: str, d: int, context_dim: int) -> Shapes:
    shapes = linear(f"{at}.to_q", d, d, bias=False)
    shapes |= linear(f"{at}.to_k", context_dim, d, bias=False)
    shapes |= linear(f"{at}.to_v", context_dim, d, bias=False)
    return shapes | linear(f"{at}.to_out.0", d, d)


def _vae_res(at: str, inputs: int, outputs: int) -> Shapes:
    shapes = norm(f"{at}.norm1", inputs) | conv(f"{at}.conv1", inputs, outputs)
    shapes |= norm(f"{at}.norm2", outputs) | conv(f"{at}.conv2", outputs, outputs)
    if inputs != outputs:
        shapes |= conv(f"{at}.nin_shortcut", inputs, outputs, 1)
    return shapes


def _vae_middle(at: str, d: int) -> Shapes:
    shapes = _vae_res(f"{at}.block_1", d, d) | norm(f"{at}.attn_1.norm", d)
    for name in ("q", "k", "v", "proj_out"):
        shapes |= conv(f"{at}.attn_1.{name}", d, d, 1)
    return shapes | _vae_res(f"{at}.block_2", d, d)
