"""The tiny autoencoders (TAESD, TAESDXL, TAESD3, TAEF1, TAEF2): sizes, tensors, names in files."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.networks.dimensions import Shape, Shapes, conv, dim, has, norm
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Layout, Location, Network, counted, same
from refsd.networks.recipe import alone

# Search this many indices of an nn.Sequential for layers; the published models have 15 and 20.
_PLACES = 100


class TAESDSize(NamedTuple):
    """Dimensions of a tiny autoencoder; the defaults are TAESD's and TAESDXL's.

    blocks: number of blocks after each of the encoder's convolutions except the last; the decoder has them reversed
    pool:   channels of the pooling branch of the blocks at latent resolution; 0: they have none
    halves: "encoder", "decoder" or both; each of the original's files has one
    """

    channels: int = 64
    latent_channels: int = 4
    blocks: tuple[int, ...] = (1, 3, 3, 3)
    image_channels: int = 3
    pool: int = 0
    halves: tuple[str, ...] = ("encoder", "decoder")


TAESD = TAESDSize()
TAESD3 = TAESDSize(latent_channels=16)
TAEF1 = TAESD3
TAEF2 = TAESDSize(latent_channels=32, pool=256)


def taesd_shapes(size: TAESDSize) -> Shapes:
    """Return the shapes of all tensors. Source: madebyollin/taesd, taesd.py: Encoder and Decoder."""
    D, last = size.channels, len(size.blocks) - 1
    shapes: Shapes = {}
    place = 0
    for level, n in enumerate(size.blocks):
        shapes |= conv(f"encoder.{place}", D if level else size.image_channels, D, bias=not level)
        for i in range(n):
            shapes |= _block(f"encoder.{place + 1 + i}", size, level == last)
        place += 1 + n
    shapes |= conv(f"encoder.{place}", D, size.latent_channels) | conv("decoder.1", size.latent_channels, D)
    place = 3
    for level in range(last, -1, -1):
        for i in range(size.blocks[level]):
            shapes |= _block(f"decoder.{place + i}", size, level == last)
        place += size.blocks[level]
        if level:
            shapes |= conv(f"decoder.{place + 1}", D, D, bias=False)
            place += 2
    shapes |= conv(f"decoder.{place}", D, size.image_channels)
    return {name: shape for name, shape in shapes.items() if name.startswith(size.halves)}


def taesd_size(shapes: Mapping[str, Shape]) -> TAESDSize:
    """Infer the size from shapes of an encoder, a decoder or both. Dimensions of missing tensors are TAESD's."""
    usual = TAESDSize()
    into, out = "encoder.0.weight", "decoder.1.weight"
    channels = dim(shapes, into, 0, dim(shapes, out, 0, usual.channels))
    encoder = _runs(shapes, "encoder.", 0)
    decoder = _runs(shapes, "decoder.", 3)[::-1]
    blocks = encoder if len(encoder) >= len(decoder) else decoder
    place = sum(blocks) + len(blocks)
    ends = f"encoder.{place}.weight"
    pools = [shape for name, shape in shapes.items() if name.endswith(".pool.0.weight")]
    image = dim(shapes, f"decoder.{3 + sum(blocks) + 2 * (len(blocks) - 1)}.weight", 0, usual.image_channels)
    return TAESDSize(
        channels=channels,
        latent_channels=dim(shapes, out, 1, dim(shapes, ends, 0, usual.latent_channels)),
        blocks=blocks or usual.blocks,
        image_channels=dim(shapes, into, 1, image),
        pool=next((shape[0] for shape in pools if len(shape) == 4 and shape[0] > 0), 0),
        halves=tuple(half for half in usual.halves if has(shapes, f"{half}.")) or usual.halves,
    )


def _runs(shapes: Mapping[str, Shape], side: str, start: int) -> tuple[int, ...]:
    """Return the number of consecutive blocks in each run of blocks in an nn.Sequential."""
    runs, n = [], 0
    for place in range(start, _PLACES):
        if has(shapes, f"{side}{place}.conv."):
            n += 1
        elif n:
            runs.append(n)
            n = 0
    return (*runs, n) if n else tuple(runs)


def _block(at: str, size: TAESDSize, at_the_latent: bool) -> Shapes:
    D = size.channels
    shapes: Shapes = {}
    for i in (0, 2, 4):
        shapes |= conv(f"{at}.conv.{i}", D, D)
    if size.pool and at_the_latent:
        shapes |= conv(f"{at}.pool.0", D, size.pool, 1, bias=False) | norm(f"{at}.pool.1", size.pool)
        shapes |= conv(f"{at}.pool.3", size.pool, D, 1, bias=False)
    return shapes


def taesd_keymap(encoder_layers: int = 15, decoder_layers: int = 19) -> Keymap:
    """Map TAESD's names to and from diffusers' AutoencoderTiny, whose decoder clamps outside its nn.Sequential.

    encoder_layers, decoder_layers: lengths of diffusers' two nn.Sequential
    """
    rows = prefix_rows((f"encoder.{i}", f"encoder.layers.{i}") for i in range(encoder_layers))
    return Keymap(rows + prefix_rows((f"decoder.{i + 1}", f"decoder.layers.{i}") for i in range(decoder_layers)))


def taesd_half_keymap(half: str, layers: int) -> Keymap:
    """Map TAESD's names of one half to and from the original's file of that half, whose names begin with an index.

    half:   "encoder" or "decoder"
    layers: length of its nn.Sequential
    """
    return Keymap(prefix_rows((f"{half}.{i}", f"{i}") for i in range(layers)))


def _tae_config(size) -> dict:
    return {
        "_class_name": "AutoencoderTiny",
        "act_fn": "relu",
        "in_channels": size.image_channels,
        "out_channels": size.image_channels,
        "latent_channels": size.latent_channels,
        "encoder_block_out_channels": [size.channels] * len(size.blocks),
        "decoder_block_out_channels": [size.channels] * len(size.blocks),
        "num_encoder_blocks": list(size.blocks),
        "num_decoder_blocks": list(size.blocks[::-1]),
        "scaling_factor": 1.0,
    }


_DIFFUSERS = counted("diffusers", taesd_keymap, {"encoder.layers.": 15, "decoder.layers.": 19}, lambda size: ())


def _half(half: str, usual: int) -> Layout:
    return counted("original", lambda layers=usual: taesd_half_keymap(half, layers), {"": usual}, lambda size: ())


TAE = Network(
    "tae",
    "tiny autoencoder",
    "autoencoder",
    taesd_size,
    taesd_shapes,
    places=(
        Location(same("original"), ("tae.", ""), ("encoder.1.conv.", "decoder.3.conv.")),
        Location(_half("encoder", 15), ("",), ("1.conv.0.",)),
        Location(_half("decoder", 20), ("",), ("1.weight",)),
        Location(_DIFFUSERS, ("first_stage_model.", "tae.", ""), ("decoder.layers.", "encoder.layers.0.weight")),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _DIFFUSERS, _tae_config),
    computed={
        "act_fn": ("relu",),
        "upsample_fn": ("nearest",),
        "upsampling_scaling_factor": (2,),
        "scaling_factor": (1,),
        "shift_factor": (0, None),
    },
    recipes={
        # Both halves in one file, in diffusers' layout.
        name: alone("tae", size, size, "taesd", keymap=lambda size: taesd_keymap())
        for name, size in (("taesd", TAESD), ("taef1", TAEF1), ("taef2", TAEF2))
    },
)
NETWORKS = (TAE,)
