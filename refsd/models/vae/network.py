"""The autoencoder of Stable Diffusion, SD 3 and FLUX.1: sizes, tensors, names in files, config.json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import num_groups, shown_value
from refsd.networks.dimensions import Shape, Shapes, conv, count, dim, has, level_width, norm
from refsd.networks.keymap import POINTWISE, Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, fixed
from refsd.numerics.errors import BadInput


class VAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are SD's.

    channels:    channels of the encoder's first convolution
    widths:      channels of each level
    quant_convs: True if quant_conv and post_quant_conv exist
    attention:   True if the middle block has attention
    """

    channels: int = 128
    widths: tuple[int, ...] = (128, 256, 512, 512)
    res_blocks: int = 2
    latent_channels: int = 4
    image_channels: int = 3
    quant_convs: bool = True
    attention: bool = True


SD_VAE = VAESize()
FLUX_VAE = VAESize(latent_channels=16, quant_convs=False)
SD3_VAE = FLUX_VAE


def vae_shapes(size: VAESize) -> Shapes:
    """Return the shapes of all tensors, including the 1x1 quant_conv and post_quant_conv.

    Source: ldm.modules.diffusionmodules.model Encoder and Decoder.
    """
    levels = len(size.widths)
    z = size.latent_channels
    ch = size.channels
    shapes = conv("encoder.conv_in", size.image_channels, ch)
    for level, width in enumerate(size.widths):
        for i in range(size.res_blocks):
            shapes |= _vae_res(f"encoder.down.{level}.block.{i}", ch, width)
            ch = width
        if level != levels - 1:
            shapes |= conv(f"encoder.down.{level}.downsample.conv", ch, ch)
    shapes |= _vae_middle("encoder.mid", ch, size)
    shapes |= norm("encoder.norm_out", ch) | conv("encoder.conv_out", ch, 2 * z)
    shapes |= conv("decoder.conv_in", z, ch) | _vae_middle("decoder.mid", ch, size)
    for level, width in reversed(list(enumerate(size.widths))):
        for i in range(size.res_blocks + 1):
            shapes |= _vae_res(f"decoder.up.{level}.block.{i}", ch, width)
            ch = width
        if level:
            shapes |= conv(f"decoder.up.{level}.upsample.conv", ch, ch)
    shapes |= norm("decoder.norm_out", ch) | conv("decoder.conv_out", ch, size.image_channels)
    if size.quant_convs:
        shapes |= conv("quant_conv", 2 * z, 2 * z, 1) | conv("post_quant_conv", z, z, 1)
    return shapes


def _vae_res(at: str, inputs: int, outputs: int) -> Shapes:
    shapes = norm(f"{at}.norm1", inputs) | conv(f"{at}.conv1", inputs, outputs)
    shapes |= norm(f"{at}.norm2", outputs) | conv(f"{at}.conv2", outputs, outputs)
    if inputs != outputs:
        shapes |= conv(f"{at}.nin_shortcut", inputs, outputs, 1)
    return shapes


def _vae_middle(at: str, d: int, size: VAESize) -> Shapes:
    shapes = _vae_res(f"{at}.block_1", d, d)
    if size.attention:
        shapes |= norm(f"{at}.attn_1.norm", d)
        for name in ("q", "k", "v", "proj_out"):
            shapes |= conv(f"{at}.attn_1.{name}", d, d, 1)
    return shapes | _vae_res(f"{at}.block_2", d, d)


_ATTENTIONS = ("encoder.mid.attn_1.", "decoder.mid.attn_1.")


def vae_size(shapes: Mapping[str, Shape]) -> VAESize:
    """Infer the size from shapes under the original's names. One half alone, encoder or decoder, is enough."""
    usual = VAESize()
    into, out = "encoder.conv_in", "decoder.norm_out"
    decoder = dim(shapes, f"{out}.weight", 0, dim(shapes, f"{out}.bias", 0, usual.channels))
    channels = dim(shapes, f"{into}.weight", 0, dim(shapes, f"{into}.bias", 0, decoder))
    levels = count(shapes, "encoder.down.", count(shapes, "decoder.up.", len(usual.widths)))
    half = "encoder.down" if has(shapes, "encoder.down.") else "decoder.up"
    latents = dim(shapes, "encoder.conv_out.bias", 0, 2 * usual.latent_channels) // 2
    up = count(shapes, "decoder.up.0.block.", usual.res_blocks + 1) - 1
    return VAESize(
        channels=channels,
        widths=vae_widths(shapes, half, levels, channels),
        res_blocks=count(shapes, "encoder.down.0.block.", max(1, up)),
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, max(1, latents)),
        image_channels=dim(shapes, f"{into}.weight", 1, usual.image_channels),
        quant_convs=has(shapes, ("quant_conv.", "post_quant_conv.")) or not has(shapes, ("encoder.", "decoder.")),
        attention=has(shapes, _ATTENTIONS) or not has(shapes, ("encoder.mid.", "decoder.mid.")),
    )


def vae_widths(shapes: Mapping[str, Shape], half: str, levels: int, channels: int) -> tuple[int, ...]:
    """Return the channels of each level of one half of an autoencoder: encoder.down or decoder.up."""
    return tuple(level_width(shapes, f"{half}.{level}.block.0.conv1", channels, level) for level in range(levels))


VAE_ENDS = (
    ("encoder.conv_in", "encoder.conv_in"),
    ("encoder.norm_out", "encoder.conv_norm_out"),
    ("encoder.conv_out", "encoder.conv_out"),
    ("decoder.conv_in", "decoder.conv_in"),
    ("decoder.norm_out", "decoder.conv_norm_out"),
    ("decoder.conv_out", "decoder.conv_out"),
    ("quant_conv", "quant_conv"),
    ("post_quant_conv", "post_quant_conv"),
)
VAE_RESNET = (
    ("norm1", "norm1"),
    ("conv1", "conv1"),
    ("norm2", "norm2"),
    ("conv2", "conv2"),
    ("nin_shortcut", "conv_shortcut"),
)
VAE_ATTENTION = (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0"))
VAE_ATTENTION_OLD = (("q", "query"), ("k", "key"), ("v", "value"), ("proj_out", "proj_attn"))


def vae_keymap(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """Map SD's names to and from diffusers' AutoencoderKL, new and old, whose attention has linear layers."""
    rows = prefix_rows(VAE_ENDS)
    for side in ("encoder", "decoder"):
        ours, theirs = f"{side}.mid", f"{side}.mid_block"
        for i in (0, 1):
            rows += prefix_rows(VAE_RESNET, f"{ours}.block_{1 + i}.", f"{theirs}.resnets.{i}.")
        rows += prefix_rows([("norm", "group_norm")], f"{ours}.attn_1.", f"{theirs}.attentions.0.")
        for names in (VAE_ATTENTION, VAE_ATTENTION_OLD):
            rows += prefix_rows(names, f"{ours}.attn_1.", f"{theirs}.attentions.0.", POINTWISE)
    for level in range(levels):
        down, up = f"encoder.down_blocks.{level}", f"decoder.up_blocks.{levels - 1 - level}"
        for i in range(res_blocks + 1):
            rows += prefix_rows(VAE_RESNET, f"encoder.down.{level}.block.{i}.", f"{down}.resnets.{i}.")
            rows += prefix_rows(VAE_RESNET, f"decoder.up.{level}.block.{i}.", f"{up}.resnets.{i}.")
        rows += prefix_rows([(f"encoder.down.{level}.downsample.conv", f"{down}.downsamplers.0.conv")])
        rows += prefix_rows([(f"decoder.up.{level}.upsample.conv", f"{up}.upsamplers.0.conv")])
    return Keymap(rows)


def vae_original_keymap() -> Keymap:
    """Map the original's names to the same names in files of tools that store the attention as linear layers."""
    rows = []
    for side in ("encoder", "decoder"):
        at = f"{side}.mid.attn_1."
        rows += prefix_rows([(ours, ours) for ours, _ in VAE_ATTENTION], at, at, POINTWISE)
    return Keymap(rows, rest_same=True)


def vae_config(size: VAESize) -> dict:
    """Return diffusers' config.json of SD's autoencoder, or FLUX.1's if there are no quant convolutions.

    scaling_factor and shift_factor are missing: they depend on the family.
    """
    levels = len(size.widths)
    return {
        "_class_name": "AutoencoderKL",
        "act_fn": "silu",
        "block_out_channels": list(size.widths),
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "in_channels": size.image_channels,
        "latent_channels": size.latent_channels,
        "layers_per_block": size.res_blocks,
        "norm_num_groups": 32,
        "out_channels": size.image_channels,
        "sample_size": 512,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        **({} if size.attention else {"mid_block_add_attention": False}),
    } | ({} if size.quant_convs else {"use_quant_conv": False, "use_post_quant_conv": False})


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Read num_groups and the latent scale from config.json; without a file, leave the scale to the family."""
    size = vae_size(shapes)
    read = num_groups(path, given, size.channels, *size.widths)
    if given:
        scale, shift = given.get("scaling_factor", 0.18215), given.get("shift_factor") or 0
        if type(scale) not in (int, float) or not 0 < scale < 1e6 or not math.isfinite(scale):
            raise BadInput(f"{path}: scaling_factor is {shown_value(scale)}; a positive number expected")
        if type(shift) not in (int, float) or not abs(shift) < 1e6:
            raise BadInput(f"{path}: shift_factor is {shown_value(shift)}; a number expected")
        read |= {"scaling_factor": float(scale), "shift_factor": float(shift)}
    return read


_LDM_NAMES = ("encoder.down.", "encoder.mid.", "decoder.up.", "decoder.mid.")
DIFFUSERS_NAMES = ("encoder.down_blocks.", "encoder.mid_block.", "decoder.up_blocks.", "decoder.mid_block.")
_LDM = fixed("ldm", vae_original_keymap)
LEVELS = {"encoder.down_blocks.": 4, "encoder.down_blocks.0.resnets.": 2}
_DIFFUSERS = counted("diffusers", vae_keymap, LEVELS, lambda size: (len(size.widths), size.res_blocks))

VAE = Network(
    "vae",
    "autoencoder",
    "autoencoder",
    vae_size,
    vae_shapes,
    places=(
        Location(_LDM, ("first_stage_model.",), _LDM_NAMES),
        Location(_DIFFUSERS, ("first_stage_model.", "vae."), DIFFUSERS_NAMES),
        Location(_LDM, ("vae.", ""), _LDM_NAMES),
        Location(_DIFFUSERS, ("",), DIFFUSERS_NAMES),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _DIFFUSERS, vae_config),
    computed={"act_fn": ("silu", "swish"), "latents_mean": (None,), "latents_std": (None,)},
    config=_read_config,
)
NETWORKS = (VAE,)
