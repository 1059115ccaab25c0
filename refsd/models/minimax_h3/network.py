"""MiniMax-H3's transformer: sizes, tensors, names in files.

The names are those of ComfyUI's files and of GGUF files made from them, where q, k and v follow each other.
MiniMax's own shards have the same names and shapes, but q, k and v head by head: nothing tells the two apart.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.networks.config import positive, whole
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, dim, has, linear, read_size
from refsd.networks.keymap import CONCAT, SWAP, Keymap, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same


class MiniMaxH3Size(NamedTuple):
    """Dimensions of the transformer; the defaults are those of the released models.

    heads:       their channels together are more than `hidden`
    channels:    of the video's latent
    frequencies: channels of the sinusoidal time embedding, of which an MLP of time_hidden channels makes time_dim
    curve:       rows of the table that has the place of both in pruned files; 0: there is none
    """

    hidden: int = 5376
    layers: int = 50
    refiners: int = 2
    heads: int = 56
    head_dim: int = 128
    mlp: int = 14336
    channels: int = 24
    audio_channels: int = 32
    context_dim: int = 5120
    frequencies: int = 256
    time_hidden: int = 5376
    time_dim: int = 2688
    curve: int = 0


MINIMAX_H3 = MiniMaxH3Size()
PRUNED = MiniMaxH3Size(frequencies=0, time_hidden=0, time_dim=8, curve=1025)
_TABLE = "adaln_t_table"
_REFINER = "token_refiner.blocks."
_AROUND = ("video_patch_proj.weight", "condition_proj.weight", "final_layer.video_out.weight")


def minimax_h3_shapes(size: MiniMaxH3Size) -> Shapes:
    """Return the shapes of all tensors. Source: ComfyUI comfy/ldm/minimax/model.py, MiniMaxH3Model."""
    D, pixels = size.hidden, 4 * size.channels
    shapes = linear("video_patch_proj", pixels, D) | linear("audio_patch_proj", size.audio_channels, D)
    shapes |= linear("condition_proj", size.context_dim, D)
    if size.curve:
        shapes[_TABLE] = (size.curve, size.time_dim)
    else:
        shapes |= linear("time_embedder.proj_in", size.frequencies, size.time_hidden)
        shapes |= linear("time_embedder.proj_out", size.time_hidden, size.time_dim)
    for i in range(size.refiners):
        shapes |= _block(f"{_REFINER}{i}", size)
    shapes["token_refiner.final_norm.weight"] = (D,)
    for i in range(size.layers):
        shapes |= _block(f"blocks.{i}", size) | linear(f"blocks.{i}.adaln_proj.linear", size.time_dim, 18 * D)
    shapes |= {"final_layer.norm.weight": (D,)} | linear("final_layer.adaln_proj.linear", size.time_dim, 2 * D)
    return (
        shapes
        | linear("final_layer.video_out", D, pixels)
        | linear("final_layer.audio_out", D, size.audio_channels)
    )


def _block(at: str, size: MiniMaxH3Size) -> Shapes:
    D, inner = size.hidden, size.heads * size.head_dim
    shapes: Shapes = {f"{at}.norm1.weight": (D,), f"{at}.norm2.weight": (D,)}
    shapes |= {f"{at}.attn.{which}_norm.weight": (size.head_dim,) for which in "qk"}
    shapes |= bare(f"{at}.attn.qkv_proj", D, 3 * inner)
    shapes |= bare(f"{at}.attn.out_proj", inner, D)
    return shapes | bare(f"{at}.mlp.fc1", D, 2 * size.mlp) | bare(f"{at}.mlp.fc2", size.mlp, D)


def minimax_h3_size(shapes: Mapping[str, Shape]) -> MiniMaxH3Size:
    """Infer the size from shapes. Dimensions of missing tensors are those of the released models."""
    usual = PRUNED if _TABLE in shapes else MINIMAX_H3
    at = "blocks.0" if has(shapes, "blocks.0.") else f"{_REFINER}0"
    head_dim = dim(shapes, f"{at}.attn.q_norm.weight", 0, usual.head_dim)
    inner = dim(shapes, f"{at}.attn.out_proj.weight", 1, usual.heads * head_dim)
    pixels = dim(shapes, "final_layer.video_out.bias", 0, 4 * usual.channels)
    return read_size(
        usual,
        minimax_h3_shapes,
        shapes,
        layers=blocks(shapes, "blocks.", usual.layers, _AROUND),
        refiners=blocks(shapes, _REFINER, usual.refiners, _AROUND),
        heads=max(1, inner // head_dim),
        channels=max(1, dim(shapes, "video_patch_proj.weight", 1, pixels) // 4),
        frequencies=dim(shapes, "time_embedder.proj_in.weight", 1, usual.frequencies),
        time_hidden=dim(shapes, "time_embedder.proj_in.weight", 0, usual.time_hidden),
        curve=dim(shapes, _TABLE, 0, 0),
    )


_ENDS = (
    ("video_patch_proj", "proj_in"),
    ("audio_patch_proj", "audio_proj_in"),
    ("condition_proj", "context_embedder"),
    ("time_embedder.proj_in", "time_embedder.linear_1"),
    ("time_embedder.proj_out", "time_embedder.linear_2"),
    ("token_refiner.final_norm", "token_refiner.final_norm"),
    ("final_layer.norm", "norm_out.norm"),
    ("final_layer.adaln_proj.linear", "norm_out.linear"),
    ("final_layer.video_out", "proj_out"),
    ("final_layer.audio_out", "audio_proj_out"),
)
_PARTS = (
    ("norm1", "norm1"),
    ("norm2", "norm2"),
    ("attn.q_norm", "attn.norm_q"),
    ("attn.k_norm", "attn.norm_k"),
    ("attn.out_proj", "attn.to_out.0"),
    ("mlp.fc1", "ff.net.0.proj", SWAP),
    ("mlp.fc2", "ff.net.2"),
    ("adaln_proj", "adaln_proj"),
    ("attn.qkv_proj", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
)


def minimax_h3_keymap(layers: int = 50, refiners: int = 2) -> Keymap:
    """Map ComfyUI's names to and from diffusers', which splits q, k and v and has value before gate."""
    rows = prefix_rows(_ENDS)
    places = {f"blocks.{i}.": f"transformer_blocks.{i}." for i in range(layers)}
    places |= {f"{_REFINER}{i}.": f"token_refiner.refiner_blocks.{i}." for i in range(refiners)}
    for ours, theirs in places.items():
        rows += prefix_rows(_PARTS, ours, theirs)
    return Keymap(rows)


def _config(size: MiniMaxH3Size) -> dict[str, Any]:
    return {
        "_class_name": "MiniMaxH3Transformer3DModel",
        "num_attention_heads": size.heads,
        "attention_head_dim": size.head_dim,
        "hidden_size": size.hidden,
        "num_layers": size.layers,
        "num_refiner_layers": size.refiners,
        "ffn_dim": size.mlp,
        "in_channels": size.channels,
        "audio_in_channels": size.audio_channels,
        "patch_size": [1, 2, 2],
        "text_dim": size.context_dim,
        "freq_dim": size.frequencies,
        "time_embed_hidden_dim": size.time_hidden,
        "time_embed_dim": size.time_dim,
        "rope_freq_dim": 16,
        "rope_theta": 10000.0,
        "norm_eps": 1e-05,
        "qk_norm_eps": 1e-05,
        "final_norm_eps": 1e-05,
    }


def _read_config(path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "axes_dim": [2 * whole(path, given, "rope_freq_dim", 16)] * 3,
        "theta": positive(path, given, "rope_theta", 10000.0),
        "eps": positive(path, given, "norm_eps", 1e-5),
        "qk_eps": positive(path, given, "qk_norm_eps", 1e-5),
        "final_eps": positive(path, given, "final_norm_eps", 1e-5),
    }


_NAMES = counted(
    "diffusers",
    minimax_h3_keymap,
    {"transformer_blocks.": MINIMAX_H3.layers, "token_refiner.refiner_blocks.": MINIMAX_H3.refiners},
    lambda size: (size.layers, size.refiners),
)

MINIMAX_H3_NETWORK = Network(
    "minimax-h3",
    "MiniMax-H3",
    "denoiser",
    minimax_h3_size,
    minimax_h3_shapes,
    places=(
        Location(same("original"), DENOISER, ("audio_patch_proj.", "blocks.0.adaln_proj.", f"{_REFINER}0.")),
        Location(_NAMES, FOLDER, ("audio_proj_in.", "token_refiner.refiner_blocks.0.", "audio_proj_out.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _NAMES, _config),
    computed={"patch_size": ([1, 2, 2],)},
    config=_read_config,
    unread=("rope.inv_freq",),
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (MINIMAX_H3_NETWORK,)
