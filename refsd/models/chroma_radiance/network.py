"""Chroma-Radiance: Chroma's blocks on patches of pixels, decoded by a small MLP (NeRF field) per patch."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.chroma.network import ChromaSize, chroma_shapes, chroma_size
from refsd.models.flux.norm_names import ORIGINAL
from refsd.networks.dimensions import Shape, Shapes, conv, count, dim, has, linear
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, Location, Network

_ENDS = ("img_in.", "final_layer.")  # Chroma's layers that Radiance lacks
_AROUND = ("img_in_patch.weight", "txt_in.weight", "nerf_image_embedder.embedder.0.weight")
X0, TWICE = "__x0__", "__32x32__"


class RadianceSize(NamedTuple):
    """Dimensions of the network; the defaults are Chroma-Radiance's.

    chroma: Chroma's blocks; in_channels and out_channels are unused
    patch:  side of a token's patch, in pixels
    field:  channels of a field; ratio: expansion of its MLPs; depth: number of its MLPs; waves: frequencies per
            direction that encode a pixel's position
    linear: True if the last layer is linear, as in the first releases; False if it is a convolution
    x0:     True if the network predicts the image; twice: True if its patches have twice the side
    """

    chroma: ChromaSize = ChromaSize()
    channels: int = 3
    patch: int = 16
    field: int = 64
    ratio: int = 4
    depth: int = 4
    waves: int = 8
    linear: bool = False
    x0: bool = False
    twice: bool = False


RADIANCE = RadianceSize()
RADIANCE_X0_32 = RadianceSize(x0=True, twice=True)


def radiance_shapes(size: RadianceSize) -> Shapes:
    """Return the shapes of all tensors. Source: lodestone-rock/flow, src/models/chroma/model_dct.py: Chroma."""
    D, K, C = size.chroma.hidden, size.field, size.channels
    shapes: Shapes = {name: (0,) for name, there in ((X0, size.x0), (TWICE, size.twice)) if there}
    shapes |= conv("img_in_patch", C, D, size.patch)
    shapes |= {name: shape for name, shape in chroma_shapes(size.chroma).items() if not name.startswith(_ENDS)}
    shapes |= linear("nerf_image_embedder.embedder.0", C + size.waves**2, K)
    for i in range(size.depth):
        shapes |= linear(f"nerf_blocks.{i}.param_generator", D, 3 * size.ratio * K**2)
        shapes |= {f"nerf_blocks.{i}.norm.scale": (K,)}
    if size.linear:
        return shapes | {"nerf_final_layer.norm.scale": (K,)} | linear("nerf_final_layer.linear", K, C)
    return shapes | {"nerf_final_layer_conv.norm.scale": (K,)} | conv("nerf_final_layer_conv.conv", K, C)


def radiance_size(shapes: Mapping[str, Shape]) -> RadianceSize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are the defaults."""
    usual = RadianceSize()
    first, embedder, maker = "img_in_patch", "nerf_image_embedder.embedder.0", "nerf_blocks.0.param_generator"
    hidden = dim(shapes, f"{first}.weight", 0, dim(shapes, f"{first}.bias", 0, usual.chroma.hidden))
    trunk = {name: shape for name, shape in shapes.items() if not name.startswith(_ENDS)}
    chroma = chroma_size(trunk | {"img_in.bias": (hidden,)}, _AROUND)
    channels = dim(shapes, f"{first}.weight", 1, usual.channels)
    field = dim(shapes, f"{embedder}.weight", 0, dim(shapes, f"{embedder}.bias", 0, usual.field))
    made = dim(shapes, f"{maker}.weight", 0, dim(shapes, f"{maker}.bias", 0, 3 * usual.ratio * field**2))
    return RadianceSize(
        chroma=chroma,
        channels=channels,
        patch=dim(shapes, f"{first}.weight", 2, usual.patch),
        field=field,
        ratio=max(made // (3 * field**2), 1) if field else usual.ratio,
        depth=count(shapes, "nerf_blocks.", usual.depth),
        waves=math.isqrt(max(dim(shapes, f"{embedder}.weight", 1, channels + usual.waves**2) - channels, 0)),
        linear=has(shapes, "nerf_final_layer."),
        x0=X0 in shapes,
        twice=TWICE in shapes,
    )


RADIANCE_NETWORK = Network(
    "chroma-radiance",
    "Chroma-Radiance",
    "denoiser",
    radiance_size,
    radiance_shapes,
    places=(Location(ORIGINAL, DENOISER, ("nerf_image_embedder.", "nerf_blocks.")),),
    adapters=DENOISER_NAMINGS,
    before=("chroma",),
)
NETWORKS = (RADIANCE_NETWORK,)
