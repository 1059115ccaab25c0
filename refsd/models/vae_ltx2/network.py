"""The video autoencoder of LTX-2 and LTX-Video: sizes, tensors, names in files, config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.vae_ltx2 import PATCH, STATISTICS, TIME_CHANNELS
from refsd.models.vae_wan.layers import conv3d
from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shape, Shapes, count, dim, has, linear
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, same
from refsd.networks.recipe import alone
from refsd.numerics.errors import BadInput

DOWN, UP = "encoder.down_blocks.", "decoder.up_blocks."


class LTX2VAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are LTX-2's.

    widths:      channels of the encoder's residual blocks, from the picture's size on
    down:        rows of the convolutions between them
    res_blocks:  their numbers
    decoder, up, decoder_blocks: the same of the decoder, from the latent's size on
    conditioned: True if the decoder asks for the latent's noise level
    """

    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    down: tuple[int, ...] = (64, 256, 128, 256)
    res_blocks: tuple[int, ...] = (4, 6, 6, 2, 2)
    decoder: tuple[int, ...] = (1024, 512, 256, 128)
    up: tuple[int, ...] = (4096, 2048, 1024)
    decoder_blocks: tuple[int, ...] = (5, 5, 5, 5)
    latent_channels: int = 128
    conditioned: bool = False


LTX2_VAE_SIZE = LTX2VAESize()
LTX_VIDEO_VAE_SIZE = LTX2_VAE_SIZE._replace(conditioned=True)  # 0.9.5 and later
LTX23_VAE_SIZE = LTX2VAESize(
    (128, 256, 512, 1024, 1024),
    (64, 256, 128, 128),
    (4, 6, 4, 2, 2),
    (1024, 512, 512, 256, 128),
    (4096, 4096, 512, 512),
    (2, 2, 4, 6, 4),
)


def ltx2_vae_shapes(size: LTX2VAESize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers autoencoder_kl_ltx2.py, convert_ltx2_to_diffusers.py."""
    z, pixels = size.latent_channels, 3 * PATCH**2
    shapes = _conv("encoder.conv_in", pixels, size.widths[0])
    shapes |= _levels(DOWN, size.widths, size.down, size.res_blocks, False)
    shapes |= _conv("encoder.conv_out", size.widths[-1], z + 1)
    shapes |= _conv("decoder.conv_in", z, size.decoder[0])
    shapes |= _levels(UP, size.decoder, size.up, size.decoder_blocks, size.conditioned)
    shapes |= _conv("decoder.conv_out", size.decoder[-1], pixels)
    if size.conditioned:
        shapes |= {"decoder.timestep_scale_multiplier": ()}
        shapes |= _time("decoder.last_time_embedder", 2 * size.decoder[-1])
        shapes |= {"decoder.last_scale_shift_table": (2, size.decoder[-1])}
    return shapes | dict.fromkeys(STATISTICS, (z,))


def _levels(at: str, widths, rows, res_blocks, conditioned: bool) -> Shapes:
    shapes: Shapes = {}
    for level, width in enumerate(widths):
        if level:
            shapes |= _conv(f"{at}{2 * level - 1}.conv", widths[level - 1], rows[level - 1])
        for i in range(res_blocks[level]):
            place = f"{at}{2 * level}.res_blocks.{i}"
            shapes |= _conv(f"{place}.conv1", width, width) | _conv(f"{place}.conv2", width, width)
            if conditioned:
                shapes |= {f"{place}.scale_shift_table": (4, width)}
        if conditioned:
            shapes |= _time(f"{at}{2 * level}.time_embedder", 4 * width)
    return shapes


def _conv(name: str, inputs: int, outputs: int) -> Shapes:
    return conv3d(f"{name}.conv", inputs, outputs)


def _time(name: str, outputs: int) -> Shapes:
    at = f"{name}.timestep_embedder"
    return linear(f"{at}.linear_1", TIME_CHANNELS, outputs) | linear(f"{at}.linear_2", outputs, outputs)


def ltx2_vae_size(shapes: Mapping[str, Shape]) -> LTX2VAESize:
    """Infer the size from shapes under the original's names. One half alone, encoder or decoder, is enough.

    The decoder's number of levels tells LTX-2.3's from the others', and with it the sizes of what is missing.
    """
    usual = LTX2_VAE_SIZE if count(shapes, UP, 7) < 9 else LTX23_VAE_SIZE
    latents = dim(shapes, "encoder.conv_out.conv.bias", 0, usual.latent_channels + 1)
    for name, axis in (("decoder.conv_in.conv.weight", 1), *((name, 0) for name in STATISTICS)):
        latents = dim(shapes, name, axis, max(2, latents) - 1) + 1
    encoder = _read_levels(shapes, DOWN, usual.widths, usual.down, usual.res_blocks)
    decoder = _read_levels(shapes, UP, usual.decoder, usual.up, usual.decoder_blocks)
    timed = "decoder.last_", "decoder.timestep_scale_multiplier", f"{UP}0.time_embedder."
    return LTX2VAESize(*encoder, *decoder, max(2, latents) - 1, has(shapes, timed))


def _read_levels(shapes: Mapping[str, Shape], at: str, widths, rows, res_blocks):
    """Return widths, rows and numbers of residual blocks of each level; those missing as in the usual ones."""
    levels = count(shapes, at, 2 * len(widths) - 1) // 2 + 1

    def usual(numbers, level):
        return numbers[min(level, len(numbers) - 1)]

    def outputs(name, default):
        return dim(shapes, f"{name}.conv.weight", 0, dim(shapes, f"{name}.conv.bias", 0, default))

    return (
        tuple(outputs(f"{at}{2 * i}.res_blocks.0.conv1", usual(widths, i)) for i in range(levels)),
        tuple(outputs(f"{at}{2 * i + 1}.conv", usual(rows, i)) for i in range(levels - 1)),
        tuple(count(shapes, f"{at}{2 * i}.res_blocks.", usual(res_blocks, i)) for i in range(levels)),
    )


_ENDS = (
    *((f"{half}.{name}", f"{half}.{name}") for half in ("encoder", "decoder") for name in ("conv_in", "conv_out")),
    ("decoder.timestep_scale_multiplier", "decoder.timestep_scale_multiplier"),
    ("decoder.last_time_embedder", "decoder.time_embedder"),
    ("decoder.last_scale_shift_table", "decoder.scale_shift_table"),
    *zip(STATISTICS, ("latents_mean", "latents_std"), strict=True),
)
_LEVEL = ("res_blocks", "resnets"), ("time_embedder", "time_embedder")


def ltx2_vae_keymap(down: int = 4, up: int = 3) -> Keymap:
    """Map Lightricks' names to and from diffusers'. down, up: convolutions between the levels of either half"""
    rows = prefix_rows(_ENDS)
    for i in range(down):
        rows += prefix_rows(_LEVEL, f"{DOWN}{2 * i}.", f"encoder.down_blocks.{i}.")
        rows += prefix_rows([(f"{DOWN}{2 * i + 1}", f"encoder.down_blocks.{i}.downsamplers.0")])
    rows += prefix_rows(_LEVEL, f"{DOWN}{2 * down}.", "encoder.mid_block.")
    rows += prefix_rows(_LEVEL, f"{UP}0.", "decoder.mid_block.")
    for i in range(up):
        rows += prefix_rows([(f"{UP}{2 * i + 1}", f"decoder.up_blocks.{i}.upsamplers.0")])
        rows += prefix_rows(_LEVEL, f"{UP}{2 * i + 2}.", f"decoder.up_blocks.{i}.")
    return Keymap(rows)


# diffusers' name of a step: values that become one's channels -> the name.
_KINDS = {8: "spatiotemporal", 4: "spatial", 2: "temporal"}
# What refsd computes; a config.json that says otherwise is refused.
_COMPUTED = {"in_channels": 3, "out_channels": 3, "patch_size": PATCH, "patch_size_t": 1, "scaling_factor": 1.0}
_PADDING = {"zeros": False, "reflect": True}


def _has_shortcuts(size: LTX2VAESize) -> bool:
    """True for the sizes of LTX-2 and LTX-Video, False for LTX-2.3's."""
    return len(size.up) < len(LTX23_VAE_SIZE.up)


def _mirrors(size: LTX2VAESize) -> bool:
    """True for LTX-2's size alone."""
    return _has_shortcuts(size) and not size.conditioned


def _kind(wide: int, narrow: int) -> str:
    return _KINDS.get(wide // narrow, "spatiotemporal")


def _config(size: LTX2VAESize) -> dict[str, Any]:
    down, up = len(size.down), len(size.up)
    return {
        "_class_name": "AutoencoderKLLTX2Video",
        **_COMPUTED,
        "block_out_channels": list(size.widths[1:]),
        "decoder_block_out_channels": list(size.decoder[-2::-1]),
        "decoder_causal": False,
        "decoder_inject_noise": [False] * (up + 1),
        "decoder_layers_per_block": list(size.decoder_blocks[::-1]),
        "decoder_spatial_padding_mode": "reflect" if _mirrors(size) else "zeros",
        "decoder_spatio_temporal_scaling": [True] * up,
        "down_block_types": ["LTX2VideoDownBlock3D"] * down,
        "downsample_type": [_kind(wide, rows) for wide, rows in zip(size.widths[1:], size.down, strict=True)],
        "encoder_causal": True,
        "encoder_spatial_padding_mode": "zeros",
        "latent_channels": size.latent_channels,
        "layers_per_block": list(size.res_blocks),
        "resnet_norm_eps": 1e-06,
        "spatial_compression_ratio": 32,
        "spatio_temporal_scaling": [True] * down,
        "temporal_compression_ratio": 8,
        "timestep_conditioning": size.conditioned,
        # The one list of the decoder's that diffusers reads from the latent's size on.
        "upsample_type": [_kind(rows, wide) for rows, wide in zip(size.up, size.decoder[1:], strict=True)],
        "upsample_factor": [a // b for a, b in zip(size.decoder, size.decoder[1:], strict=False)][::-1],
        "upsample_residual": [_has_shortcuts(size)] * up,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Without a config.json, the decoder's size tells LTX-2's conventions from LTX-2.3's and LTX-Video's.

    A field that a config.json lacks is as in diffusers' class, AutoencoderKLLTX2Video or AutoencoderKLLTXVideo.
    """
    size = ltx2_vae_size(shapes)
    of_ltx2 = bool(given) and given.get("_class_name") != "AutoencoderKLLTXVideo"
    return {
        "encoder_causal": _one_of(path, given, "encoder_causal", _FLAGS, True),
        "encoder_mirrors": _one_of(path, given, "encoder_spatial_padding_mode", _PADDING, False),
        "decoder_causal": _one_of(path, given, "decoder_causal", _FLAGS, of_ltx2),
        "decoder_mirrors": _one_of(
            path, given, "decoder_spatial_padding_mode", _PADDING, of_ltx2 or (not given and _mirrors(size))
        ),
        "shortcuts": _shortcuts(path, shapes, given, of_ltx2 or (not given and _has_shortcuts(size))),
    }


_FLAGS = {True: True, False: False}


def _one_of(path: Path, given: dict[str, Any], field: str, values: Mapping[Any, bool], default: bool) -> bool:
    for value, meaning in values.items():
        if field in given and type(given[field]) is type(value) and given[field] == value:
            return meaning
    if field in given:
        names = " or ".join(ascii(value) for value in values)
        raise BadInput(f"{path}: {field} is {shown_value(given[field])}; {names} expected")
    return default


def _shortcuts(path: Path, shapes: Shapes, given: dict[str, Any], default: bool) -> bool:
    """Return whether the decoder's steps have shortcuts: all, or none."""
    value = given.get("upsample_residual", default)
    flags = value if type(value) is list and value else [value]
    steps = len(ltx2_vae_size(shapes).up) if flags is value and has(shapes, UP) else len(flags)
    if len(flags) != steps or any(type(flag) is not bool or flag != flags[0] for flag in flags):
        raise BadInput(f"{path}: upsample_residual is {shown_value(value)}; true or false for all steps expected")
    return bool(flags[0])


_PREFIXES = ("first_stage_model.", "vae.", "")
_DIFFUSERS = counted(
    "diffusers",
    ltx2_vae_keymap,
    {"encoder.down_blocks.": 4, "decoder.up_blocks.": 3},
    lambda size: (len(size.down), len(size.up)),
)
_TINY = LTX2VAESize(
    (8, 16, 32, 64, 128), (4, 16, 8, 16), (2, 1, 1, 1, 1), (64, 32, 16, 8), (256, 128, 64), (2, 1, 1, 1), 8
)
_TINY_23 = LTX2VAESize(
    (8, 16, 32, 64, 64), (4, 16, 8, 8), (1,) * 5, (64, 32, 32, 16, 8), (256, 256, 32, 32), (1,) * 5, 8
)

LTX2_VAE = Network(
    "ltx2-vae",
    "LTX-2's or LTX-Video's autoencoder",
    "autoencoder",
    ltx2_vae_size,
    ltx2_vae_shapes,
    places=(
        Location(
            same("original"), _PREFIXES, (f"{DOWN}0.res_blocks.0.conv1.conv.", f"{UP}0.res_blocks.0.conv1.conv.")
        ),
        Location(
            _DIFFUSERS,
            _PREFIXES,
            ("encoder.down_blocks.0.resnets.0.conv1.conv.", "decoder.mid_block.resnets.0.conv1.conv."),
        ),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _DIFFUSERS, _config),
    computed={
        **{field: (value,) for field, value in _COMPUTED.items()},
        "decoder_inject_noise": ([False] * 4, [False] * 5, False),
    },
    config=_read_config,
    before=("vae", "flux2-vae"),
    unread=("per_channel_statistics.channel", "per_channel_statistics.mean-of-stds*"),
    recipes={
        "ltx2-vae": alone("ltx2-vae", LTX2_VAE_SIZE, _TINY, "vae"),
        "ltx-video-vae": alone("ltx2-vae", LTX_VIDEO_VAE_SIZE, _TINY._replace(conditioned=True), "vae"),
        "ltx23-vae": alone("ltx2-vae", LTX23_VAE_SIZE, _TINY_23, "vae"),
    },
)
NETWORKS = (LTX2_VAE,)
