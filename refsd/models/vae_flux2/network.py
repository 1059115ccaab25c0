"""FLUX.2's autoencoder: SD's, with a decoder that may be narrower and a batch norm on the packed latents."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.vae.network import DIFFUSERS_NAMES, LEVELS, VAESize, vae_keymap, vae_shapes, vae_widths
from refsd.networks.config import num_groups, positive
from refsd.networks.dimensions import Shape, Shapes, count, dim
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Layout, Location, Network, counted
from refsd.networks.recipe import alone


class Flux2VAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are FLUX.2's. The small decoder is narrower than its encoder.

    channels: channels of the encoder's first convolution
    widths:   channels of each level of the encoder; decoder: of the decoder
    """

    channels: int = 128
    widths: tuple[int, ...] = (128, 256, 512, 512)
    decoder: tuple[int, ...] = (128, 256, 512, 512)
    res_blocks: int = 2
    latent_channels: int = 32


def flux2_vae_shapes(size: Flux2VAESize) -> Shapes:
    """Return the shapes of all tensors: SD's autoencoder, and the batch norm's statistics of the packed latents."""
    wide = VAESize(
        channels=size.channels,
        widths=size.widths,
        res_blocks=size.res_blocks,
        latent_channels=size.latent_channels,
    )
    whole, decoder = vae_shapes(wide), vae_shapes(wide._replace(widths=size.decoder))
    shapes = {name: shape for name, shape in whole.items() if name.startswith("encoder.")}
    shapes |= {name: shape for name, shape in decoder.items() if not name.startswith("encoder.")}
    return shapes | {f"bn.running_{name}": (4 * size.latent_channels,) for name in ("mean", "var")}


def flux2_vae_size(shapes: Mapping[str, Shape]) -> Flux2VAESize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are FLUX.2's."""
    usual = Flux2VAESize()
    channels = dim(shapes, "encoder.conv_in.weight", 0, usual.channels)
    levels = count(shapes, "encoder.down.", len(usual.widths))
    first = dim(shapes, "decoder.norm_out.weight", 0, channels)
    return Flux2VAESize(
        channels=channels,
        widths=vae_widths(shapes, "encoder.down", levels, channels),
        decoder=vae_widths(shapes, "decoder.up", levels, first),
        res_blocks=count(shapes, "encoder.down.0.block.", usual.res_blocks),
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, usual.latent_channels),
    )


_BFL = (("quant_conv", "encoder.quant_conv"), ("post_quant_conv", "decoder.post_quant_conv"))


def flux2_vae_keymap(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """Map names to and from diffusers' AutoencoderKLFlux2: as in SD's autoencoder; statistics keep their names."""
    keymap = vae_keymap(levels, res_blocks)
    keymap.rest_same = True
    return keymap


def flux2_vae_original_keymap() -> Keymap:
    """Map names to and from black-forest-labs' file, where encoder and decoder contain the quant convolutions."""
    return Keymap(prefix_rows(_BFL), rest_same=True)


def _flux2_vae_config(size) -> dict:
    levels = len(size.widths)
    return {
        "_class_name": "AutoencoderKLFlux2",
        "act_fn": "silu",
        "batch_norm_eps": 0.0001,
        "batch_norm_momentum": 0.1,
        "block_out_channels": list(size.widths),
        "decoder_block_out_channels": list(size.decoder),
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "latent_channels": size.latent_channels,
        "layers_per_block": size.res_blocks,
        "norm_num_groups": 32,
        "patch_size": [2, 2],
        "sample_size": 1024,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    size = flux2_vae_size(shapes)
    eps = positive(path, given, "batch_norm_eps", 1e-4)
    return num_groups(path, given, size.channels, *size.widths, *size.decoder) | {"eps": eps}


_FOLDER = counted("diffusers", flux2_vae_keymap, LEVELS, lambda size: (len(size.widths), size.res_blocks))


def _any_names(names: Collection[str]) -> Keymap:
    if any(name.startswith(DIFFUSERS_NAMES) for name in names):
        return _FOLDER.of_names(names)
    return flux2_vae_original_keymap()


FLUX2_VAE = Network(
    "flux2-vae",
    "FLUX.2's autoencoder",
    "autoencoder",
    flux2_vae_size,
    flux2_vae_shapes,
    places=(
        Location(
            Layout("original", _any_names, lambda size: flux2_vae_original_keymap()),
            ("first_stage_model.", "vae.", ""),
            ("bn.running_mean",),
        ),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _FOLDER, _flux2_vae_config),
    computed={
        "act_fn": ("silu", "swish"),
        "mid_block_add_attention": (True,),
        "patch_size": ([2, 2],),
    },
    config=_read_config,
    unread=("bn.num_batches_tracked",),
    before=("vae",),
    recipes={
        "flux2-vae": alone(
            "flux2-vae", Flux2VAESize(), Flux2VAESize(32, (32, 64, 128, 128), (32, 64, 128, 128)), "vae"
        )
    },
)
NETWORKS = (FLUX2_VAE,)
