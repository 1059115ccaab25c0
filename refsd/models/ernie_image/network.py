"""Ernie-Image's transformer: sizes, tensors, names in files. Single files have diffusers' names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.networks.config import positive, rotary_axes
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, linear, read_size
from refsd.networks.naming import denoiser_namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, same


class ErnieImageSize(NamedTuple):
    """Dimensions of the transformer; the defaults are the released Ernie-Image's, which diffusers' class's are not.

    channels:    of the packed latent, whose pixels are tokens
    context_dim: channels of Ministral's hidden states
    """

    hidden: int = 4096
    layers: int = 36
    head_dim: int = 128
    mlp: int = 12288
    channels: int = 128
    context_dim: int = 3072


ERNIE_IMAGE = ErnieImageSize()
_AROUND = ("x_embedder.proj.weight", "text_proj.weight", "final_linear.weight", "adaLN_modulation.1.weight")


def ernie_image_shapes(size: ErnieImageSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers transformer_ernie_image.py."""
    D = size.hidden
    shapes: Shapes = {"x_embedder.proj.weight": (D, size.channels, 1, 1), "x_embedder.proj.bias": (D,)}
    shapes |= bare("text_proj", size.context_dim, D)
    shapes |= linear("time_embedding.linear_1", D, D) | linear("time_embedding.linear_2", D, D)
    shapes |= linear("adaLN_modulation.1", D, 6 * D)
    for i in range(size.layers):
        shapes |= _block(f"layers.{i}", size)
    return shapes | linear("final_norm.linear", D, 2 * D) | linear("final_linear", D, size.channels)


def _block(at: str, size: ErnieImageSize) -> Shapes:
    D, shapes = size.hidden, {f"{at}.{norm}.weight": (size.hidden,) for norm in ("adaLN_sa_ln", "adaLN_mlp_ln")}
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        shapes |= bare(f"{at}.self_attention.{name}", D, D)
    shapes |= {f"{at}.self_attention.norm_{which}.weight": (size.head_dim,) for which in "qk"}
    for name in ("gate_proj", "up_proj"):
        shapes |= bare(f"{at}.mlp.{name}", D, size.mlp)
    return shapes | bare(f"{at}.mlp.linear_fc2", size.mlp, D)


def ernie_image_size(shapes: Mapping[str, Shape]) -> ErnieImageSize:
    """Infer the size from shapes. Dimensions of missing tensors are Ernie-Image's."""
    layers = blocks(shapes, "layers.", ERNIE_IMAGE.layers, _AROUND)
    return read_size(ERNIE_IMAGE, ernie_image_shapes, shapes, layers=layers)


def _config(size: ErnieImageSize) -> dict[str, Any]:
    return {
        "_class_name": "ErnieImageTransformer2DModel",
        "hidden_size": size.hidden,
        "num_attention_heads": size.hidden // size.head_dim,
        "num_layers": size.layers,
        "ffn_hidden_size": size.mlp,
        "in_channels": size.channels,
        "out_channels": size.channels,
        "patch_size": 1,
        "text_in_dim": size.context_dim,
        "rope_theta": 256,
        "rope_axes_dim": [32, 48, 48],
        "eps": 1e-06,
        "qk_layernorm": True,
    }


_NAMES = same("diffusers")

ERNIE_IMAGE_NETWORK = Network(
    "ernie-image",
    "Ernie-Image",
    "denoiser",
    ernie_image_size,
    ernie_image_shapes,
    places=(Location(_NAMES, (*DENOISER, *FOLDER), ("layers.0.adaLN_sa_ln.", "layers.0.mlp.linear_fc2.")),),
    folder=Folder("transformer", DIFFUSERS_FILE, _NAMES, _config),
    computed={"patch_size": (1,), "qk_layernorm": (True,)},
    config=lambda path, shapes, given: {
        "axes_dim": rotary_axes(path, given, "rope_axes_dim", [32, 48, 48]),
        "theta": positive(path, given, "rope_theta", 256.0),
        "eps": positive(path, given, "eps", 1e-6),
    },
    adapters=denoiser_namings(),
)
NETWORKS = (ERNIE_IMAGE_NETWORK,)
