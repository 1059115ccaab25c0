"""The tensors of Chroma: every name and shape, in the order of the original's modules, and the size they tell."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.architecture_flux import double_stream, embedder, single_stream, trunk_size
from refsd.weights.layer_shapes import Shape, Shapes, linear
from refsd.weights.sizes import count, dim

APPROXIMATOR = "distilled_guidance_layer"


class ChromaSize(NamedTuple):
    """FLUX.1's trunk, and the approximator that modulates it.

    width, layers: of the approximator
    waves:         what it takes: a quarter embeds the time, a quarter the guidance, a half a vector's number
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
    """lodestone-rock/flow, src/models/chroma/model.py: Chroma."""
    D = size.hidden
    shapes = linear("img_in", size.in_channels, D) | linear("txt_in", size.context_dim, D)
    shapes |= linear(f"{APPROXIMATOR}.in_proj", size.waves, size.width)
    for i in range(size.layers):
        shapes |= embedder(f"{APPROXIMATOR}.layers.{i}", size.width, size.width)
    shapes |= {f"{APPROXIMATOR}.norms.{i}.scale": (size.width,) for i in range(size.layers)}
    shapes |= linear(f"{APPROXIMATOR}.out_proj", size.width, D)
    for i in range(size.double_blocks):
        for stream in ("img", "txt"):
            shapes |= double_stream(f"double_blocks.{i}", stream, D, size.head_dim, size.mlp)
    for i in range(size.single_blocks):
        shapes |= single_stream(f"single_blocks.{i}", D, size.head_dim, size.mlp)
    return shapes | linear("final_layer.linear", D, size.out_channels)


def chroma_size(shapes: Mapping[str, Shape]) -> ChromaSize:
    """From canonical names. What is missing is Chroma's own."""
    usual = ChromaSize()
    into = f"{APPROXIMATOR}.in_proj"
    return ChromaSize(
        **trunk_size(shapes),
        width=dim(shapes, f"{into}.weight", 0, dim(shapes, f"{into}.bias", 0, usual.width)),
        layers=count(shapes, f"{APPROXIMATOR}.layers.", usual.layers),
        waves=dim(shapes, f"{into}.weight", 1, usual.waves),
    )
