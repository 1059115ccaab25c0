"""Qwen-Image 2.1's transformer: sizes, tensors, names in files.

Names are those of ComfyUI's files. diffusers has an MLP's gate and value in two matrices.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import positive, rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, read_size
from refsd.networks.keymap import CONCAT, Keymap, Row
from refsd.networks.naming import denoiser_namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same


class QwenImage21Size(NamedTuple):
    """Dimensions of the transformer; the defaults are Qwen-Image 2.1's.

    head_dim:    channels of the norms of queries and keys
    channels:    latent channels, which are those of a token
    frequencies: channels of the sinusoidal time embedding
    context_dim: channels of Qwen3-VL's hidden states
    """

    hidden: int = 4096
    layers: int = 32
    head_dim: int = 128
    mlp: int = 12288
    channels: int = 64
    frequencies: int = 256
    context_dim: int = 4096


QWEN_IMAGE21 = QwenImage21Size()
TEXT_NORM = "txt_in.text_norm.weight"
_AROUND = ("img_in.weight", TEXT_NORM, "proj_out.weight")


def qwen_image21_shapes(size: QwenImage21Size) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers QwenImage21Transformer2DModel."""
    D = size.hidden
    layers = {
        "time_text_embed.timestep_embedder.linear_1": (size.frequencies, D),
        "time_text_embed.timestep_embedder.linear_2": (D, D),
        "txt_in.in_layer": (size.context_dim, D),
        "txt_in.out_layer": (D, D),
        "img_in": (size.channels, D),
        "modulation.1": (D, 4 * D),
    }
    norms = {TEXT_NORM: (size.context_dim,)}
    for i in range(size.layers):
        at = f"transformer_blocks.{i}"
        layers |= {f"{at}.attn.{name}": (D, D) for name in ("to_q", "to_k", "to_v", "to_out.0")}
        layers |= {f"{at}.img_mlp.gate_up": (D, 2 * size.mlp), f"{at}.img_mlp.out": (size.mlp, D)}
        norms |= {f"{at}.attn.norm_{which}.weight": (size.head_dim,) for which in "qk"}
    layers |= {"norm_out.linear": (D, D), "proj_out": (D, size.channels)}
    shapes: Shapes = {}
    for name, (inputs, outputs) in layers.items():
        shapes |= bare(name, inputs, outputs)
    return shapes | norms


def qwen_image21_size(shapes: Mapping[str, Shape]) -> QwenImage21Size:
    """Infer the size from shapes. Dimensions of missing tensors are Qwen-Image 2.1's."""
    layers = blocks(shapes, "transformer_blocks.", QWEN_IMAGE21.layers, _AROUND)
    return read_size(QWEN_IMAGE21, qwen_image21_shapes, shapes, layers=layers)


def qwen_image21_keymap(layers: int = 32) -> Keymap:
    """Map ComfyUI's names to and from diffusers'."""
    mlps = [f"transformer_blocks.{i}.img_mlp." for i in range(layers)]
    return Keymap(
        [Row(f"{mlp}gate_up", (f"{mlp}gate_layer", f"{mlp}proj"), CONCAT) for mlp in mlps], rest_same=True
    )


def _config(size: QwenImage21Size) -> dict[str, Any]:
    return {
        "_class_name": "QwenImage21Transformer2DModel",
        "patch_size": 1,
        "in_channels": size.channels,
        "out_channels": size.channels,
        "num_layers": size.layers,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "context_in_dim": size.context_dim,
        "mlp_ratio": size.mlp // size.hidden,
        "axes_dims_rope": [16, 56, 56],
        "eps": 1e-06,
        "causal_condition": True,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "axes_dim": rotary_axes_of_heads(path, given, [16, 56, 56]),
        "eps": positive(path, given, "eps", 1e-6),
    }


_DIFFUSERS = counted(
    "diffusers", qwen_image21_keymap, {"transformer_blocks.": QWEN_IMAGE21.layers}, lambda size: (size.layers,)
)
_PREFIXES = (*DENOISER, *FOLDER)
_BLOCK = "transformer_blocks.0.img_mlp."

QWEN_IMAGE21_NETWORK = Network(
    "qwen-image21",
    "Qwen-Image 2.1",
    "denoiser",
    qwen_image21_size,
    qwen_image21_shapes,
    places=(
        Location(_DIFFUSERS, _PREFIXES, (f"{_BLOCK}gate_layer.", f"{_BLOCK}proj.")),
        Location(same("comfyui"), _PREFIXES, ("txt_in.text_norm.", f"{_BLOCK}gate_up.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _config),
    computed={"patch_size": (1,), "causal_condition": (True,)},
    config=_read_config,
    adapters=denoiser_namings("comfyui"),
)
NETWORKS = (QWEN_IMAGE21_NETWORK,)
