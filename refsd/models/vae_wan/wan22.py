"""Wan 2.2's autoencoder: sizes, tensors, names in files, config.json."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from refsd.models.vae_wan.latents import WAN22_LATENTS_MEAN, WAN22_LATENTS_STD, config_of, statistics
from refsd.models.vae_wan.layers import RES_NAMES, SAMPLING, conv3d, head, middle, res_block, shared_rows
from refsd.networks.dimensions import Shape, Shapes, conv, count, dim, has, level_width, read_size
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, same
from refsd.networks.recipe import alone


class Wan22VAESize(NamedTuple):
    """Dimensions of Wan 2.2's autoencoder; the defaults are TI2V-5B's.

    widths:         channels of each level of the encoder, from the picture's size on
    decoder:        of the decoder
    halves:         for each downsampling, True if it also halves the frames; the decoder has them reversed
    image_channels: channels of 2x2 pixels
    """

    channels: int = 160
    widths: tuple[int, ...] = (160, 320, 640, 640)
    decoder: tuple[int, ...] = (256, 512, 1024, 1024)
    res_blocks: int = 2
    halves: tuple[bool, ...] = (False, True, True)
    latent_channels: int = 48
    image_channels: int = 12


def wan22_vae_shapes(size: Wan22VAESize) -> Shapes:
    """Return the shapes of all tensors. Source: Wan-Video/Wan2.2, wan/modules/vae2_2.py, WanVAE_."""
    z, ch, last = size.latent_channels, size.channels, len(size.widths) - 1
    shapes = conv3d("encoder.conv1", size.image_channels, ch)
    for level, width in enumerate(size.widths):
        at = f"encoder.downsamples.{level}.downsamples"
        for i in range(size.res_blocks):
            shapes |= res_block(f"{at}.{i}", ch, width)
            ch = width
        if level != last:
            shapes |= conv(f"{at}.{size.res_blocks}.resample.1", ch, ch)
            if size.halves[level]:
                shapes |= conv3d(f"{at}.{size.res_blocks}.time_conv", ch, ch, (3, 1, 1))
    shapes |= middle("encoder.middle", ch) | head("encoder.head", ch, 2 * z)
    shapes |= conv3d("conv1", 2 * z, 2 * z, (1, 1, 1)) | conv3d("conv2", z, z, (1, 1, 1))
    ch = size.decoder[-1]
    shapes |= conv3d("decoder.conv1", z, ch) | middle("decoder.middle", ch)
    for place, width in enumerate(reversed(size.decoder)):
        at = f"decoder.upsamples.{place}.upsamples"
        for i in range(size.res_blocks + 1):
            shapes |= res_block(f"{at}.{i}", ch, width)
            ch = width
        if place != last:
            shapes |= conv(f"{at}.{size.res_blocks + 1}.resample.1", ch, ch)
            if size.halves[last - 1 - place]:
                shapes |= conv3d(f"{at}.{size.res_blocks + 1}.time_conv", ch, 2 * ch, (3, 1, 1))
    return shapes | head("decoder.head", ch, size.image_channels)


def wan22_vae_size(shapes: Mapping[str, Shape]) -> Wan22VAESize:
    """Infer the size from shapes under the original's names. One half alone, encoder or decoder, is enough."""
    usual = Wan22VAESize()
    down, up = "encoder.downsamples.", "decoder.upsamples."
    levels = count(shapes, down, 0) or count(shapes, up, len(usual.widths))
    encoder = [f"{down}{i}.downsamples." for i in range(levels)]
    decoder = [f"{up}{i}.upsamples." for i in reversed(range(levels))]
    # One level of each half, whose residual blocks are counted, has no sampling after these.
    plain, sampled, more = encoder[-1], encoder[:-1], 0
    if has(shapes, up) and not has(shapes, down):
        plain, sampled, more = decoder[0], decoder[1:], 1
    halves = tuple(any(name.startswith(at) and ".time_conv." in name for name in shapes) for at in sampled)
    latents = dim(shapes, "encoder.head.2.bias", 0, 2 * usual.latent_channels) // 2
    channels = dim(shapes, "encoder.conv1.weight", 0, usual.channels)
    return read_size(
        usual,
        wan22_vae_shapes,
        shapes,
        widths=_widths(shapes, encoder, channels),
        decoder=_widths(shapes, decoder, dim(shapes, "decoder.head.0.gamma", 0, usual.decoder[0])),
        res_blocks=max(1, count(shapes, plain, usual.res_blocks + more) - more),
        halves=halves if has(shapes, (down, up)) else usual.halves,
        latent_channels=dim(shapes, "decoder.conv1.weight", 1, max(1, latents)),
    )


def _widths(shapes: Mapping[str, Shape], levels: Sequence[str], first: int) -> tuple[int, ...]:
    names = [f"{at}0.residual.2" for at in levels]
    return tuple(level_width(shapes, name, first, level) for level, name in enumerate(names))


def wan22_vae_keymap(levels: int = 4, encoder_blocks: int = 2, decoder_blocks: int = 3) -> Keymap:
    """Map names of Wan 2.2's autoencoder to and from diffusers' AutoencoderKLWan.

    encoder_blocks, decoder_blocks: residual blocks of each level of either half
    """
    rows = shared_rows()
    for half, way, blocks in (("encoder", "down", encoder_blocks), ("decoder", "up", decoder_blocks)):
        for level in range(levels):
            ours, theirs = f"{half}.{way}samples.{level}.{way}samples", f"{half}.{way}_blocks.{level}"
            for i in range(blocks):
                rows += prefix_rows(RES_NAMES, f"{ours}.{i}.", f"{theirs}.resnets.{i}.")
            rows += prefix_rows(SAMPLING, f"{ours}.{blocks}.", f"{theirs}.{way}sampler.")
    return Keymap(rows)


def _config(size: Wan22VAESize) -> dict[str, Any]:
    return config_of(
        size,
        "AutoencoderKLWan",
        WAN22_LATENTS_MEAN,
        WAN22_LATENTS_STD,
        decoder_base_dim=size.decoder[0],
        in_channels=size.image_channels,
        is_residual=True,
        out_channels=size.image_channels,
        patch_size=2,
        scale_factor_spatial=2 ** len(size.widths),
        scale_factor_temporal=2 ** sum(size.halves),
    )


def sees_frames(shapes: Mapping[str, Shape]) -> bool:
    """True if the first convolution of a level is over several frames; Qwen-Image 2.1's autoencoder has one."""
    return any(name.endswith(_FIRST) and len(shape) == 5 and shape[2] > 1 for name, shape in shapes.items())


_FIRST = "samples.0.residual.2.weight", "_blocks.0.resnets.0.conv1.weight"
_PREFIXES = ("first_stage_model.", "vae.", "")
_DIFFUSERS = counted(
    "diffusers",
    wan22_vae_keymap,
    {"decoder.up_blocks.": 4, "encoder.down_blocks.0.resnets.": 2, "decoder.up_blocks.0.resnets.": 3},
    lambda size: (len(size.widths), size.res_blocks, size.res_blocks + 1),
)

WAN22_VAE = Network(
    "wan22-vae",
    "Wan 2.2's autoencoder",
    "autoencoder",
    wan22_vae_size,
    wan22_vae_shapes,
    places=(
        Location(
            same("original"),
            _PREFIXES,
            ("encoder.downsamples.0.downsamples.", "decoder.upsamples.0.upsamples."),
            shaped=sees_frames,
        ),
        Location(
            _DIFFUSERS,
            _PREFIXES,
            ("encoder.down_blocks.0.resnets.0.norm1.gamma", "decoder.up_blocks.0.upsampler."),
            shaped=sees_frames,
        ),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _DIFFUSERS, _config),
    computed={"attn_scales": ([],), "is_residual": (True,), "patch_size": (2,)},
    config=lambda path, shapes, given: statistics(path, wan22_vae_size(shapes).latent_channels, given),
    before=("wan-vae", "qwen-image21-vae", "vae", "flux2-vae"),
    recipes={
        "wan22-vae": alone(
            "wan22-vae", Wan22VAESize(), Wan22VAESize(16, (16, 32, 64, 64), (24, 48, 96, 96), 1), "vae"
        )
    },
)
