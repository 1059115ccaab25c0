"""Wan 2.1's and Qwen-Image's autoencoder: sizes, tensors, names in files, config.json."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.vae_wan.latents import LATENTS_MEAN, LATENTS_STD, config_of, statistics
from refsd.models.vae_wan.layers import RES_NAMES, SAMPLING, conv3d, head, middle, res_block, shared_rows
from refsd.models.vae_wan.wan22 import WAN22_VAE
from refsd.networks.dimensions import Shape, Shapes, conv, count, dim, has, level_width
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, same
from refsd.networks.recipe import alone


class WanVAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are those of Wan 2.1 and Qwen-Image.

    channels: channels of the encoder's first convolution
    widths:   channels of each level; the decoder's upsamplings halve theirs, so all but the first are even
    halves:   for each downsampling, True if it also halves the frames; the decoder has them reversed
    """

    channels: int = 96
    widths: tuple[int, ...] = (96, 192, 384, 384)
    res_blocks: int = 2
    halves: tuple[bool, ...] = (False, True, True)
    latent_channels: int = 16
    image_channels: int = 3


def wan_vae_shapes(size: WanVAESize) -> Shapes:
    """Return the shapes of all tensors. Source: Wan-Video/Wan2.1, wan/modules/vae.py, WanVAE_."""
    z, ch, last = size.latent_channels, size.channels, len(size.widths) - 1
    shapes = conv3d("encoder.conv1", size.image_channels, ch)
    place = 0
    for level, width in enumerate(size.widths):
        for _ in range(size.res_blocks):
            shapes |= res_block(f"encoder.downsamples.{place}", ch, width)
            ch, place = width, place + 1
        if level != last:
            at = f"encoder.downsamples.{place}"
            shapes |= conv(f"{at}.resample.1", ch, ch)
            if size.halves[level]:
                shapes |= conv3d(f"{at}.time_conv", ch, ch, (3, 1, 1))
            place += 1
    shapes |= middle("encoder.middle", ch) | head("encoder.head", ch, 2 * z)
    shapes |= conv3d("conv1", 2 * z, 2 * z, (1, 1, 1)) | conv3d("conv2", z, z, (1, 1, 1))
    shapes |= conv3d("decoder.conv1", z, ch) | middle("decoder.middle", ch)
    place = 0
    for level, width in reversed(list(enumerate(size.widths))):
        for _ in range(size.res_blocks + 1):
            shapes |= res_block(f"decoder.upsamples.{place}", ch, width)
            ch, place = width, place + 1
        if level:
            at = f"decoder.upsamples.{place}"
            shapes |= conv(f"{at}.resample.1", ch, ch // 2)
            if size.halves[level - 1]:
                shapes |= conv3d(f"{at}.time_conv", ch, 2 * ch, (3, 1, 1))
            ch, place = ch // 2, place + 1
    return shapes | head("decoder.head", ch, size.image_channels)


def wan_vae_size(shapes: Mapping[str, Shape]) -> WanVAESize:
    """Infer the size from shapes under the original's names. One half alone, encoder or decoder, is enough."""
    usual = WanVAESize()
    half = "encoder.downsamples" if has(shapes, "encoder.downsamples.") else "decoder.upsamples"
    places = count(shapes, f"{half}.", 0)
    samplings = [place for place in range(places) if has(shapes, _sampling(half, place))]
    run = samplings[0] if samplings else places  # residual blocks of the half's first level
    starts = [0, *(place + 1 for place in samplings)]
    halves = [has(shapes, f"{half}.{place}.time_conv.") for place in samplings]
    if half.startswith("decoder."):
        run, starts, halves = run - 1, starts[::-1], halves[::-1]
    channels = dim(shapes, "decoder.head.0.gamma", 0, usual.channels)
    for name in ("encoder.downsamples.0.residual.0.gamma", "encoder.conv1.bias", "encoder.conv1.weight"):
        channels = dim(shapes, name, 0, channels)
    latents = dim(shapes, "encoder.head.2.bias", 0, 2 * usual.latent_channels) // 2
    image = dim(shapes, "decoder.head.2.bias", 0, usual.image_channels)
    size = usual._replace(
        channels=channels,
        latent_channels=dim(shapes, "decoder.conv1.weight", 1, max(1, latents)),
        image_channels=dim(shapes, "encoder.conv1.weight", 1, image),
    )
    if not places:
        return size._replace(widths=tuple(width // usual.channels * channels for width in usual.widths))
    convs = [f"{half}.{start}.residual.2" for start in starts]
    widths = tuple(level_width(shapes, name, channels, level) for level, name in enumerate(convs))
    return size._replace(widths=widths, res_blocks=max(1, run), halves=tuple(halves))


def _sampling(half: str, place: int) -> tuple[str, str]:
    """Return the prefixes of the tensors of a layer that changes the picture's size."""
    return f"{half}.{place}.resample.", f"{half}.{place}.time_conv."


def wan_vae_keymap(encoder_layers: int = 11, levels: int = 4, res_blocks: int = 3) -> Keymap:
    """Map names to and from diffusers' AutoencoderKLQwenImage and AutoencoderKLWan.

    encoder_layers: residual blocks and downsamplings of the encoder, which diffusers numbers as the original does
    res_blocks:     residual blocks of each of the decoder's levels
    """
    rows = shared_rows()
    for i in range(encoder_layers):
        rows += prefix_rows((*RES_NAMES, *SAMPLING), f"encoder.downsamples.{i}.", f"encoder.down_blocks.{i}.")
    for level in range(levels):
        first, up = level * (res_blocks + 1), f"decoder.up_blocks.{level}"
        for i in range(res_blocks):
            rows += prefix_rows(RES_NAMES, f"decoder.upsamples.{first + i}.", f"{up}.resnets.{i}.")
        rows += prefix_rows(SAMPLING, f"decoder.upsamples.{first + res_blocks}.", f"{up}.upsamplers.0.")
    return Keymap(rows)


def _counts(size: WanVAESize) -> tuple[int, int, int]:
    levels = len(size.widths)
    return levels * (size.res_blocks + 1) - 1, levels, size.res_blocks + 1


_ORIGINAL_NAMES = ("encoder.downsamples.0.residual.", "decoder.upsamples.0.residual.")
_DIFFUSERS_NAMES = (
    *("encoder.mid_block.attentions.0.to_qkv.", "decoder.mid_block.attentions.0.to_qkv."),
    *("encoder.down_blocks.0.norm1.gamma", "decoder.up_blocks.0.resnets.0.norm1.gamma"),
)
_DIFFUSERS = counted(
    "diffusers",
    wan_vae_keymap,
    {"encoder.down_blocks.": 11, "decoder.up_blocks.": 4, "decoder.up_blocks.0.resnets.": 3},
    _counts,
)

WAN_VAE = Network(
    "wan-vae",
    "Wan 2.1's and Qwen-Image's autoencoder",
    "autoencoder",
    wan_vae_size,
    wan_vae_shapes,
    places=(
        Location(same("original"), ("first_stage_model.", "vae.", ""), _ORIGINAL_NAMES),
        Location(_DIFFUSERS, ("first_stage_model.", "vae.", ""), _DIFFUSERS_NAMES),
    ),
    folder=Folder(
        "vae",
        DIFFUSERS_FILE,
        _DIFFUSERS,
        lambda size: config_of(size, "AutoencoderKLQwenImage", LATENTS_MEAN, LATENTS_STD),
    ),
    computed={"attn_scales": ([],), "is_residual": (False,), "patch_size": (None,)},
    config=lambda path, shapes, given: statistics(path, wan_vae_size(shapes).latent_channels, given),
    before=("vae", "flux2-vae"),
    recipes={"wan-vae": alone("wan-vae", WanVAESize(), WanVAESize(32, (32, 64, 128, 128), 1), "vae")},
)
NETWORKS = WAN_VAE, WAN22_VAE
