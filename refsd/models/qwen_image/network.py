"""Qwen-Image's transformer (text to image, Edit, Layered): sizes, tensors, names in files.

ComfyUI's single files and GGUF files keep diffusers' names. No shape reveals that Edit 2511 modulates references as
at time 0: a folder's config.json does (zero_cond_t), and in ComfyUI's files an empty tensor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, blocks, dim, linear, read_size
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, Folder, Location, Network, same

ZERO_COND_T = "__index_timestep_zero__"


class QwenImageSize(NamedTuple):
    """Dimensions of the transformer; the defaults are Qwen-Image's.

    in_channels, out_channels: channels of a token, 4 for each latent channel
    head_dim:    channels of the norms of queries and keys
    context_dim: channels of Qwen2.5-VL's hidden states
    frequencies: channels of the sinusoidal time embedding
    additions:   rows of Layered's second embedding; 0: there is none, as in all others
    zero_cond_t: shape of the empty tensor that marks Edit 2511 in ComfyUI's files; None: it is absent
    """

    hidden: int = 3072
    layers: int = 60
    head_dim: int = 128
    mlp: int = 12288
    in_channels: int = 64
    out_channels: int = 64
    context_dim: int = 3584
    frequencies: int = 256
    additions: int = 0
    zero_cond_t: Shape | None = None


QWEN_IMAGE = QwenImageSize()
QWEN_IMAGE_LAYERED = QwenImageSize(additions=2)
ADDITION = "time_text_embed.addition_t_embedding"

_STREAMS = (
    ("img", ("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k")),
    ("txt", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", ("norm_added_q", "norm_added_k")),
)


def qwen_image_shapes(size: QwenImageSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers transformer_qwenimage.py, QwenImageTransformer2DModel."""
    D = size.hidden
    shapes = linear("time_text_embed.timestep_embedder.linear_1", size.frequencies, D)
    shapes |= linear("time_text_embed.timestep_embedder.linear_2", D, D)
    if size.additions:
        shapes |= {f"{ADDITION}.weight": (size.additions, D)}
    shapes |= {"txt_norm.weight": (size.context_dim,)}
    shapes |= linear("img_in", size.in_channels, D) | linear("txt_in", size.context_dim, D)
    for i in range(size.layers):
        at = f"transformer_blocks.{i}"
        for stream, projections, out, norms in _STREAMS:
            shapes |= linear(f"{at}.{stream}_mod.1", D, 6 * D)
            for name in (*projections, out):
                shapes |= linear(f"{at}.attn.{name}", D, D)
            shapes |= {f"{at}.attn.{name}.weight": (size.head_dim,) for name in norms}
            shapes |= linear(f"{at}.{stream}_mlp.net.0.proj", D, size.mlp)
            shapes |= linear(f"{at}.{stream}_mlp.net.2", size.mlp, D)
    shapes |= linear("norm_out.linear", D, 2 * D) | linear("proj_out", D, size.out_channels)
    return shapes if size.zero_cond_t is None else shapes | {ZERO_COND_T: size.zero_cond_t}


_AROUND = ("img_in.weight", "txt_in.weight", "proj_out.weight")


def qwen_image_size(shapes: Mapping[str, Shape]) -> QwenImageSize:
    """Infer the size from shapes. Dimensions of missing tensors are Qwen-Image's."""
    layers = blocks(shapes, "transformer_blocks.", QWEN_IMAGE.layers, _AROUND)
    flag = shapes.get(ZERO_COND_T)
    return read_size(QWEN_IMAGE, qwen_image_shapes, shapes, layers=layers, additions=0, zero_cond_t=flag)


def layered_size(shapes: Mapping[str, Shape]) -> QwenImageSize:
    """Infer Layered's size from shapes, as `qwen_image_size` does."""
    return qwen_image_size(shapes)._replace(
        additions=dim(shapes, f"{ADDITION}.weight", 0, QWEN_IMAGE_LAYERED.additions)
    )


def _config(size: QwenImageSize) -> dict[str, Any]:
    return {
        "_class_name": "QwenImageTransformer2DModel",
        "patch_size": 2,
        "in_channels": size.in_channels,
        "out_channels": size.out_channels // 4,
        "num_layers": size.layers,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "joint_attention_dim": size.context_dim,
        "guidance_embeds": False,
        "axes_dims_rope": [16, 56, 56],
        "zero_cond_t": size.zero_cond_t is not None,
        "use_additional_t_cond": size.additions > 0,
        "use_layer3d_rope": size.additions > 0,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Read from config.json, or from the mark in ComfyUI's files, if references are modulated as at time 0."""
    marked = bool(given.get("zero_cond_t", False)) or ZERO_COND_T in shapes
    return {"zero_cond_t": marked, **_read_axes(path, shapes, given)}


def _read_axes(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {"axes_dim": rotary_axes_of_heads(path, given, [16, 56, 56])}


_NAMES = same("diffusers")
_PREFIXES = (*DENOISER, "transformer.")
_FOLDER = Folder("transformer", DIFFUSERS_FILE, _NAMES, _config, drops=(ZERO_COND_T,))
_COMPUTED = {
    "patch_size": (2,),
    "guidance_embeds": (False,),
}

QWEN_IMAGE_NETWORK = Network(
    "qwen-image",
    "Qwen-Image",
    "denoiser",
    qwen_image_size,
    qwen_image_shapes,
    places=(Location(_NAMES, _PREFIXES, ("txt_norm.", "transformer_blocks.0.txt_mod.")),),
    folder=_FOLDER,
    computed={
        **_COMPUTED,
        "zero_cond_t": (False, True),
        "use_additional_t_cond": (False,),
        "use_layer3d_rope": (False,),
    },
    config=_read_config,
    adapters=DENOISER_NAMINGS,
)
LAYERED_NETWORK = Network(
    "qwen-image-layered",
    "Qwen-Image-Layered",
    "denoiser",
    layered_size,
    qwen_image_shapes,
    places=(Location(_NAMES, _PREFIXES, (f"{ADDITION}.",)),),
    folder=_FOLDER,
    computed={
        **_COMPUTED,
        "zero_cond_t": (False,),
        "use_additional_t_cond": (True,),
        "use_layer3d_rope": (True,),
    },
    config=_read_axes,
    before=("qwen-image",),
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (QWEN_IMAGE_NETWORK, LAYERED_NETWORK)
