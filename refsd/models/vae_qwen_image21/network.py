"""Qwen-Image 2.1's autoencoder: sizes, tensors, names in files, config.json."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from refsd.models.vae_wan.latents import config_of, statistics
from refsd.networks.dimensions import Shape, Shapes, conv, count, dim, has
from refsd.networks.keymap import Keymap, Rule, prefix_rows, reshaped
from refsd.networks.network import DIFFUSERS_FILE, Folder, Layout, Location, Network, same
from refsd.networks.recipe import alone
from refsd.numerics.tensor import StoredTensor

# Mean and standard deviation of each latent channel: diffusers' AutoencoderKLQwenImage21.
LATENTS_MEAN = (
    *(0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722),
    *(1.8873, -1.7177, -0.6510, 0.2732, 0.7562, -0.6163, -1.0277, 3.8363),
    *(2.0210, 0.0472, 0.9320, 2.0087, 2.4954, -0.1391, -1.4249, 1.8464),
    *(-0.5236, 1.2826, 3.7046, -1.3035, 2.7286, -1.4518, -1.9036, -1.9955),
    *(-0.0342, -1.0265, -0.7636, 3.0555, 0.0746, -3.0751, -0.1076, 1.7376),
    *(-1.0914, -1.9435, -0.2784, -1.3680, 0.4809, -0.4433, 0.3764, 0.5729),
    *(-2.0595, 1.0960, -1.3260, -2.0211, -5.0179, 0.5275, 4.0162, 1.8505),
    *(0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304),
)
LATENTS_STD = (
    *(3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.7910),
    *(3.0785, 3.6500, 3.9308, 3.0904, 2.8778, 3.7675, 3.7320, 5.0756),
    *(3.2864, 4.0397, 3.1317, 4.0443, 2.9249, 3.9454, 3.0988, 4.2489),
    *(3.4896, 3.8513, 3.9323, 3.4719, 3.7498, 4.2830, 3.5694, 4.2467),
    *(3.9037, 3.2947, 5.0770, 3.5075, 3.2700, 3.4767, 2.8063, 5.1125),
    *(3.5327, 4.7833, 3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875),
    *(3.9624, 4.0168, 3.5643, 4.0550, 5.5614, 4.2963, 4.4080, 3.4959),
    *(3.8747, 3.7608, 3.5735, 3.1490, 3.7662, 3.6746, 3.4563, 3.8161),
)


class QwenImage21VAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are Qwen-Image 2.1's.

    widths:  channels of each level of the encoder, from the picture's size on; decoder: of the decoder
    halves:  for each downsampling, True if Wan's also halves the frames there
    """

    channels: int = 96
    widths: tuple[int, ...] = (96, 192, 384, 768, 768)
    decoder: tuple[int, ...] = (144, 288, 576, 1152, 1152)
    res_blocks: int = 2
    halves: tuple[bool, ...] = (False, True, True, True)
    latent_channels: int = 64
    image_channels: int = 4


def qwen_image21_vae_shapes(size: QwenImage21VAESize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers AutoencoderKLQwenImage21."""
    z, ch, last = size.latent_channels, size.channels, len(size.widths) - 1
    shapes = conv("encoder.conv_in", size.image_channels, ch)
    for level, width in enumerate(size.widths):
        at = f"encoder.down_blocks.{level}"
        for i in range(size.res_blocks):
            shapes |= _res(f"{at}.resnets.{i}", ch, width)
            ch = width
        if level != last:
            shapes |= conv(f"{at}.downsampler.resample.1", ch, ch)
            if size.halves[level]:
                shapes |= conv(f"{at}.downsampler.time_conv", ch, ch, 1)
    shapes |= _middle("encoder.mid_block", ch) | _head("encoder", ch, 2 * z)
    shapes |= conv("quant_conv", 2 * z, 2 * z, 1) | conv("post_quant_conv", z, z, 1)
    ch = size.decoder[-1]
    shapes |= conv("decoder.conv_in", z, ch) | _middle("decoder.mid_block", ch)
    for place, width in enumerate(reversed(size.decoder)):
        at = f"decoder.up_blocks.{place}"
        for i in range(size.res_blocks + 1):
            shapes |= _res(f"{at}.resnets.{i}", ch, width)
            ch = width
        if place != last:
            shapes |= conv(f"{at}.upsampler.resample.1", ch, ch)
            if size.halves[last - 1 - place]:
                shapes |= conv(f"{at}.upsampler.time_conv", ch, 2 * ch, 1)
    return shapes | _head("decoder", ch, size.image_channels)


def _res(at: str, inputs: int, outputs: int) -> Shapes:
    shapes: Shapes = {f"{at}.norm1.gamma": (inputs, 1, 1, 1)} | conv(f"{at}.conv1", inputs, outputs)
    shapes |= {f"{at}.norm2.gamma": (outputs, 1, 1, 1)} | conv(f"{at}.conv2", outputs, outputs)
    return shapes | conv(f"{at}.conv_shortcut", inputs, outputs, 1) if inputs != outputs else shapes


def _middle(at: str, d: int) -> Shapes:
    attention: Shapes = {f"{at}.attentions.0.norm.gamma": (d, 1, 1)}
    attention |= conv(f"{at}.attentions.0.to_qkv", d, 3 * d, 1) | conv(f"{at}.attentions.0.proj", d, d, 1)
    return attention | _res(f"{at}.resnets.0", d, d) | _res(f"{at}.resnets.1", d, d)


def _head(half: str, inputs: int, outputs: int) -> Shapes:
    return {f"{half}.norm_out.gamma": (inputs, 1, 1, 1)} | conv(f"{half}.conv_out", inputs, outputs)


def qwen_image21_vae_size(shapes: Mapping[str, Shape]) -> QwenImage21VAESize:
    """Infer the size from shapes under diffusers' names. Dimensions of missing tensors are Qwen-Image 2.1's."""
    usual = QwenImage21VAESize()
    down, up = "encoder.down_blocks.", "decoder.up_blocks."
    levels = count(shapes, down, 0) or count(shapes, up, len(usual.widths))
    channels = dim(shapes, "encoder.conv_in.bias", 0, usual.channels)
    channels = dim(shapes, "encoder.conv_in.weight", 0, channels)
    first = dim(shapes, "decoder.norm_out.gamma", 0, usual.decoder[0])
    if has(shapes, down):
        res_blocks = count(shapes, f"{down}0.resnets.", usual.res_blocks)
        halves = [has(shapes, f"{down}{i}.downsampler.time_conv.") for i in range(levels - 1)]
    else:
        res_blocks = max(1, count(shapes, f"{up}0.resnets.", usual.res_blocks + 1) - 1)
        halves = [has(shapes, f"{up}{levels - 2 - i}.upsampler.time_conv.") for i in range(levels - 1)]
    latents = dim(shapes, "encoder.conv_out.bias", 0, 2 * usual.latent_channels) // 2
    image = dim(shapes, "decoder.conv_out.bias", 0, usual.image_channels)
    return QwenImage21VAESize(
        channels=channels,
        widths=_widths(shapes, [f"{down}{i}" for i in range(levels)], channels),
        decoder=_widths(shapes, [f"{up}{levels - 1 - i}" for i in range(levels)], first),
        res_blocks=res_blocks,
        halves=tuple(halves) if has(shapes, (down, up)) else usual.halves,
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, max(1, latents)),
        image_channels=dim(shapes, "encoder.conv_in.weight", 1, image),
    )


def _widths(shapes: Mapping[str, Shape], levels: Sequence[str], first: int) -> tuple[int, ...]:
    """Return the channels of each level; if its first convolution is missing, the usual multiple of `first`."""
    usual = QwenImage21VAESize().widths
    multiples = [usual[min(i, len(usual) - 1)] // usual[0] for i in range(len(levels))]
    return tuple(
        dim(shapes, f"{at}.resnets.0.conv1.weight", 0, n * first) for at, n in zip(levels, multiples, strict=True)
    )


def _one_frame_less(shape: Shape) -> Shape:
    return (*shape[:2], *shape[3:]) if len(shape) == 5 and shape[2] == 1 else shape


def _one_frame_more(tensor: StoredTensor) -> StoredTensor:
    shape = tensor.shape
    return reshaped(tensor, (*shape[:2], 1, *shape[2:])) if len(shape) == 4 else tensor


# Our convolution [K, C, 3, 3] is one over a frame, [K, C, 1, 3, 3], in theirs.
OF_ONE_FRAME = Rule(
    lambda shapes: _one_frame_less(shapes[0]),
    lambda parts: reshaped(parts[0], _one_frame_less(parts[0].shape)),
    lambda tensor, _: [_one_frame_more(tensor)],
)
_RES = (
    ("norm1", "residual.0"),
    ("conv1", "residual.2", OF_ONE_FRAME),
    ("norm2", "residual.3"),
    ("conv2", "residual.6", OF_ONE_FRAME),
    ("conv_shortcut", "shortcut", OF_ONE_FRAME),
)
_SAMPLING = (("resample", "resample"), ("time_conv", "time_conv", OF_ONE_FRAME))
_HALF = (
    ("conv_in", "conv1", OF_ONE_FRAME),
    ("mid_block.attentions.0", "middle.1"),
    ("norm_out", "head.0"),
    ("conv_out", "head.2", OF_ONE_FRAME),
)


def comfyui_keymap(levels: int = 5, res_blocks: int = 3) -> Keymap:
    """Map names to and from ComfyUI's file, where they are those of Wan 2.2's autoencoder.

    res_blocks: residual blocks of each of the decoder's levels; the encoder's have one less
    """
    rows = prefix_rows((("quant_conv", "conv1", OF_ONE_FRAME), ("post_quant_conv", "conv2", OF_ONE_FRAME)))
    for half, block, ours, sampler in (
        ("encoder", "down_blocks", "downsamples", "downsampler"),
        ("decoder", "up_blocks", "upsamples", "upsampler"),
    ):
        rows += prefix_rows(_HALF, f"{half}.", f"{half}.")
        places = {f"{half}.mid_block.resnets.{i}.": f"{half}.middle.{2 * i}." for i in (0, 1)}
        blocks = res_blocks - (half == "encoder")
        for level in range(levels):
            at, there = f"{half}.{block}.{level}", f"{half}.{ours}.{level}.{ours}"
            places |= {f"{at}.resnets.{i}.": f"{there}.{i}." for i in range(blocks)}
            rows += prefix_rows(_SAMPLING, f"{at}.{sampler}.", f"{there}.{blocks}.")
        for at, there in places.items():
            rows += prefix_rows(_RES, at, there)
    return Keymap(rows)


def _of_names(names: Collection[str]) -> Keymap:
    """Count levels, and the blocks of the last level, which has no sampling after them."""
    levels = count(names, "decoder.upsamples.", count(names, "encoder.downsamples.", 5))
    blocks = count(names, f"encoder.downsamples.{levels - 1}.downsamples.", 2) + 1
    return comfyui_keymap(levels, count(names, f"decoder.upsamples.{levels - 1}.upsamples.", blocks))


def _config(size: QwenImage21VAESize) -> dict[str, Any]:
    sides = {"in_channels": size.image_channels, "out_channels": size.image_channels}
    more = {"decoder_base_dim": size.decoder[0], "is_residual": True, "patch_size": None, **sides}
    return config_of(size, "AutoencoderKLQwenImage21", LATENTS_MEAN, LATENTS_STD, **more)


_PREFIXES = ("first_stage_model.", "vae.", "")
_COMFYUI = Layout("comfyui", _of_names, lambda size: comfyui_keymap(len(size.widths), size.res_blocks + 1))
_TINY = QwenImage21VAESize(16, (16, 32, 64, 128, 128), (24, 48, 96, 192, 192), 1)

QWEN_IMAGE21_VAE = Network(
    "qwen-image21-vae",
    "Qwen-Image 2.1's autoencoder",
    "autoencoder",
    qwen_image21_vae_size,
    qwen_image21_vae_shapes,
    places=(
        Location(
            same("diffusers"),
            _PREFIXES,
            ("encoder.down_blocks.0.resnets.0.norm1.gamma", "decoder.up_blocks.0.upsampler."),
        ),
        Location(_COMFYUI, _PREFIXES, ("encoder.downsamples.0.downsamples.", "decoder.upsamples.0.upsamples.")),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, same("diffusers"), _config),
    computed={"attn_scales": ([],), "is_residual": (True,), "patch_size": (None,)},
    config=lambda path, shapes, given: statistics(path, qwen_image21_vae_size(shapes).latent_channels, given),
    before=("wan-vae", "vae", "flux2-vae"),
    recipes={"qwen-image21-vae": alone("qwen-image21-vae", QwenImage21VAESize(), _TINY, "vae")},
)
NETWORKS = (QWEN_IMAGE21_VAE,)
