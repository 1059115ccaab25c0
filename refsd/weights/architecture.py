"""The tensors of Stable Diffusion 1.x, 2.x and SDXL: every name and shape, in the order of the original file.

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
    """SD 1.5's unless given.

    channel_mult: one factor a level
    attention:    the levels that have transformers
    linear:       whether they project with linear layers, not convolutions
    label:        channels of `y`, 0 where nothing embeds it
    down:         how many blocks the transformer after each of a level's res blocks has, 0: there is none;
                  () for 1 in the levels of `attention`
    middle:       the same of the middle, whose only res block remains where it is 0; None: there is no middle
    up:           as `down`, in the order of the levels too, one more each; () for as many as on the way down last
    cross_only:   the levels whose self-attention looks at the context instead
    """

    channels: int = 320
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
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
    channel_mult=(1, 2, 4),
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
    attention=(1, 2),
    context_dim=1280,
    linear=True,
    label=2560,
    down=((0, 0), (4, 4), (4, 4), (0, 0)),
    middle=4,
)
SSD_1B = SDXL._replace(down=((0, 0), (2, 2), (4, 4)), middle=0, up=((0, 0, 0), (2, 1, 1), (4, 4, 10)))
VEGA = SDXL._replace(down=((0, 0), (1, 1), (2, 2)), middle=0)
TINY_SD = UNetSize(channel_mult=(1, 2, 4), res_blocks=1, middle=None)
# SDXS-512-DreamShaper's config.json says attention_head_dim 8: eight heads, as SD 1. ComfyUI takes heads of 64.
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


class VAESize(NamedTuple):
    """SD's unless given. quant_convs: whether there are quant_conv and post_quant_conv"""

    channels: int = 128
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    latent_channels: int = 4
    image_channels: int = 3
    quant_convs: bool = True


class CLIPSize(NamedTuple):
    """CLIP-L's unless given. projection: rows of text_projection, 0 where there is none"""

    hidden: int = 768
    layers: int = 12
    mlp: int = 3072
    vocab: int = 49408
    positions: int = 77
    projection: int = 0


SD_VAE = VAESize()
FLUX_VAE = VAESize(latent_channels=16, quant_convs=False)
SD3_VAE = FLUX_VAE
CLIP_L = CLIPSize()
CLIP_L_PROJECTED = CLIPSize(projection=768)
CLIP_H = CLIPSize(hidden=1024, layers=24, mlp=4096, projection=1024)
CLIP_H_23 = CLIP_H._replace(layers=23, projection=0)
CLIP_G = CLIPSize(hidden=1280, layers=32, mlp=5120, projection=1280)


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
    """The denoiser: openaimodel.UNetModel of CompVis/stable-diffusion and Stability-AI/generative-models."""
    ch, embed = size.channels, 4 * size.channels
    last = len(size.channel_mult) - 1
    down, up = unet_depths(size)
    shapes = {**linear("time_embed.0", ch, embed), **linear("time_embed.2", embed, embed)}
    if size.label:
        shapes |= linear("label_emb.0.0", size.label, embed) | linear("label_emb.0.2", embed, embed)
    shapes |= conv("input_blocks.0.0", size.in_channels, ch)
    skips = [ch]
    n = 1
    for level, mult in enumerate(size.channel_mult):
        for depth in down[level]:
            shapes |= _unet_res(f"input_blocks.{n}.0", ch, mult * size.channels, embed)
            ch = mult * size.channels
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
    for level, mult in reversed(list(enumerate(size.channel_mult))):
        for i, depth in enumerate(up[level]):
            shapes |= _unet_res(f"output_blocks.{n}.0", ch + skips.pop(), mult * size.channels, embed)
            ch = mult * size.channels
            shapes |= _transformer(f"output_blocks.{n}.1", ch, size, depth, level)
            if level and i == size.res_blocks:
                shapes |= conv(f"output_blocks.{n}.{1 + (depth > 0)}.conv", ch, ch)
            n += 1
    return shapes | norm("out.0", ch) | conv("out.2", ch, size.out_channels)


def unet_depths(size: UNetSize) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """`down` and `up` of a size, spelled out."""
    levels = range(len(size.channel_mult))
    down = size.down or tuple((int(level in size.attention),) * size.res_blocks for level in levels)
    return down, size.up or tuple((depths[-1],) * (size.res_blocks + 1) for depths in down)


def vae_shapes(size: VAESize) -> Shapes:
    """The autoencoder: ldm.modules.diffusionmodules.model Encoder and Decoder, and 1x1 (post_)quant_conv."""
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
    if size.quant_convs:
        shapes |= conv("quant_conv", 2 * z, 2 * z, 1) | conv("post_quant_conv", z, z, 1)
    return shapes


def clip_shapes(size: CLIPSize) -> Shapes:
    """The text encoder: transformers' CLIPTextModel, or CLIPTextModelWithProjection."""
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
    shapes |= norm("text_model.final_layer_norm", d)
    return shapes | linear("text_projection", d, size.projection, bias=False) if size.projection else shapes


def _unet_res(at: str, inputs: int, outputs: int, embed: int) -> Shapes:
    shapes = norm(f"{at}.in_layers.0", inputs) | conv(f"{at}.in_layers.2", inputs, outputs)
    shapes |= linear(f"{at}.emb_layers.1", embed, outputs)
    shapes |= norm(f"{at}.out_layers.0", outputs) | conv(f"{at}.out_layers.3", outputs, outputs)
    if inputs != outputs:
        shapes |= conv(f"{at}.skip_connection", inputs, outputs, 1)
    return shapes


def _transformer(at: str, d: int, size: UNetSize, depth: int, level: int) -> Shapes:
    """A SpatialTransformer of `depth` blocks; nothing where it has none."""
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
