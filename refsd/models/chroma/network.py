"""Chroma's transformer: FLUX.1's blocks, with all modulation computed by one small network, the approximator."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.flux.network import (
    AROUND,
    BLOCKS,
    FLUX_DOUBLE,
    FLUX_ENDS,
    FLUX_FIELDS,
    FLUX_SINGLE,
    double_stream,
    embedder,
    read_axes,
    single_linear1_rows,
    single_stream,
    trunk_blocks,
    trunk_config,
)
from refsd.models.flux.norm_names import ORIGINAL
from refsd.networks.dimensions import Shape, Shapes, count, linear, read_size
from refsd.networks.keymap import Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted

_APPROXIMATOR = "distilled_guidance_layer"


class ChromaSize(NamedTuple):
    """Dimensions of FLUX.1's blocks and of the approximator; the defaults are Chroma's.

    width, layers: of the approximator
    waves:         the approximator's input channels: a quarter embeds the time, a quarter the guidance, half the
                   index of the modulation vector
    """

    hidden: int = 3072
    double_blocks: int = 19
    single_blocks: int = 38
    head_dim: int = 128
    mlp: int = 12288
    in_channels: int = 64
    out_channels: int = 64
    context_dim: int = 4096
    width: int = 5120
    layers: int = 5
    waves: int = 64


CHROMA = ChromaSize()


def chroma_shapes(size: ChromaSize) -> Shapes:
    """Return the shapes of all tensors. Source: lodestone-rock/flow, src/models/chroma/model.py: Chroma."""
    D = size.hidden
    shapes = linear("img_in", size.in_channels, D) | linear("txt_in", size.context_dim, D)
    shapes |= linear(f"{_APPROXIMATOR}.in_proj", size.waves, size.width)
    for i in range(size.layers):
        shapes |= embedder(f"{_APPROXIMATOR}.layers.{i}", size.width, size.width)
    shapes |= {f"{_APPROXIMATOR}.norms.{i}.scale": (size.width,) for i in range(size.layers)}
    shapes |= linear(f"{_APPROXIMATOR}.out_proj", size.width, D)
    for i in range(size.double_blocks):
        for stream in ("img", "txt"):
            shapes |= double_stream(f"double_blocks.{i}", stream, D, size.head_dim, size.mlp)
    for i in range(size.single_blocks):
        shapes |= single_stream(f"single_blocks.{i}", D, size.head_dim, size.mlp)
    return shapes | linear("final_layer.linear", D, size.out_channels)


def chroma_size(shapes: Mapping[str, Shape], around: tuple[str, ...] = AROUND) -> ChromaSize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are Chroma's.

    around: names of tensors before and after the blocks, as in `dimensions.blocks`
    """
    layers = count(shapes, f"{_APPROXIMATOR}.layers.", CHROMA.layers)
    return read_size(CHROMA, chroma_shapes, shapes, **trunk_blocks(shapes, around), layers=layers)


_ENDS = tuple(row for row in FLUX_ENDS if row[0] in ("img_in", "txt_in", "final_layer.linear"))
_APPROXIMATOR_ENDS = ("in_proj", "out_proj")
_APPROXIMATOR_LAYER = (
    ("layers.{}.in_layer", "layers.{}.linear_1"),
    ("layers.{}.out_layer", "layers.{}.linear_2"),
    ("norms.{}.scale", "norms.{}.weight"),
)


def chroma_keymap(double_blocks: int = 19, single_blocks: int = 38, layers: int = 5) -> Keymap:
    """Map Chroma's names to and from diffusers' ChromaTransformer2DModel, which splits q, k and v."""
    rows = prefix_rows(_ENDS)
    approximator = [(end, end) for end in _APPROXIMATOR_ENDS]
    approximator += [
        (ours.format(i), theirs.format(i)) for i in range(layers) for ours, theirs in _APPROXIMATOR_LAYER
    ]
    rows += prefix_rows(approximator, f"{_APPROXIMATOR}.", f"{_APPROXIMATOR}.")
    double, single = ([row for row in table if not row[0].endswith(".lin")] for table in (FLUX_DOUBLE, FLUX_SINGLE))
    rows += block_rows(double_blocks, "double_blocks", "transformer_blocks", double)
    rows += block_rows(single_blocks, "single_blocks", "single_transformer_blocks", single)
    return Keymap(rows)


def _chroma_config(size) -> dict:
    return {
        "_class_name": "ChromaTransformer2DModel",
        **trunk_config(size),
        "axes_dims_rope": [16, 56, 56],
        "approximator_num_channels": size.waves,
        "approximator_hidden_dim": size.width,
        "approximator_layers": size.layers,
    }


_DIFFUSERS = counted(
    "diffusers",
    chroma_keymap,
    {**BLOCKS, "distilled_guidance_layer.layers.": 5},
    lambda size: (size.double_blocks, size.single_blocks, size.layers),
)

CHROMA_NETWORK = Network(
    "chroma",
    "Chroma",
    "denoiser",
    chroma_size,
    chroma_shapes,
    places=(
        Location(_DIFFUSERS, FOLDER, ("distilled_guidance_layer.layers.0.linear_1.",)),
        Location(ORIGINAL, DENOISER, ("distilled_guidance_layer.",)),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _chroma_config, single_linear1_rows),
    computed=FLUX_FIELDS,
    config=read_axes,
    adapters=DENOISER_NAMINGS,
    before=("flux",),
)
NETWORKS = (CHROMA_NETWORK,)
