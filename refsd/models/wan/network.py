"""The transformer of Wan 2.1 and 2.2: sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import divisor, positive, shown_value
from refsd.networks.dimensions import Shape, Shapes, blocks, dim, has, linear, norm, read_size
from refsd.networks.keymap import Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same
from refsd.numerics.errors import BadInput


class WanSize(NamedTuple):
    """Dimensions of the transformer; the defaults are those of text to video with 14B parameters.

    in_channels, out_channels: channels of a latent; image to video's input has a mask and the first frame besides
    context_dim: channels of UMT5's hidden states
    frequencies: channels of the sinusoidal time embedding
    cross_norm:  True if the cross-attention's input is normalised, as in all released models
    """

    hidden: int = 5120
    layers: int = 40
    mlp: int = 13824
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 4096
    frequencies: int = 256
    cross_norm: bool = True


WAN_14B = WanSize()
WAN_1_3B = WanSize(1536, 30, 8960)
WAN_I2V_14B = WanSize(in_channels=36)
PATCH = (1, 2, 2)


def wan_shapes(size: WanSize) -> Shapes:
    """Return the shapes of all tensors. Source: Wan-Video/Wan2.2, wan/modules/model.py, WanModel."""
    D = size.hidden
    shapes: Shapes = {"patch_embedding.weight": (D, size.in_channels, *PATCH), "patch_embedding.bias": (D,)}
    shapes |= linear("text_embedding.0", size.context_dim, D) | linear("text_embedding.2", D, D)
    shapes |= linear("time_embedding.0", size.frequencies, D) | linear("time_embedding.2", D, D)
    shapes |= linear("time_projection.1", D, 6 * D)
    for i in range(size.layers):
        at = f"blocks.{i}"
        shapes[f"{at}.modulation"] = (1, 6, D)
        for part in ("self_attn", "cross_attn"):
            for name in "qkvo":
                shapes |= linear(f"{at}.{part}.{name}", D, D)
            shapes |= {f"{at}.{part}.norm_{name}.weight": (D,) for name in "qk"}
        shapes |= norm(f"{at}.norm3", D) if size.cross_norm else {}
        shapes |= linear(f"{at}.ffn.0", D, size.mlp) | linear(f"{at}.ffn.2", size.mlp, D)
    return shapes | linear("head.head", D, 4 * size.out_channels) | {"head.modulation": (1, 2, D)}


_AROUND = ("patch_embedding.weight", "text_embedding.0.weight", "head.head.weight")


def wan_size(shapes: Mapping[str, Shape]) -> WanSize:
    """Infer the size from shapes under Wan's own names. Dimensions of missing tensors are those of 14B."""
    rows = dim(shapes, "head.head.weight", 0, dim(shapes, "head.head.bias", 0, 4 * WAN_14B.out_channels))
    return read_size(
        WAN_14B,
        wan_shapes,
        shapes,
        layers=blocks(shapes, "blocks.", WAN_14B.layers, _AROUND),
        out_channels=max(1, rows // 4),
        cross_norm=not has(shapes, "blocks.") or any(".norm3." in name for name in shapes),
    )


_ENDS = (
    ("patch_embedding", "patch_embedding"),
    ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
    ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
    ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
    ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
    ("time_projection.1", "condition_embedder.time_proj"),
    ("head.head", "proj_out"),
    ("head.modulation", "scale_shift_table"),
)
_LINEAR = (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"))
_ATTENTION = (*_LINEAR, ("norm_q", "norm_q"), ("norm_k", "norm_k"))
_BLOCK = (
    ("modulation", "scale_shift_table"),
    *((f"self_attn.{ours}", f"attn1.{theirs}") for ours, theirs in _ATTENTION),
    *((f"cross_attn.{ours}", f"attn2.{theirs}") for ours, theirs in _ATTENTION),
    ("norm3", "norm2"),
    ("ffn.0", "ffn.net.0.proj"),
    ("ffn.2", "ffn.net.2"),
)


def wan_keymap(layers: int = 40) -> Keymap:
    """Map Wan's own names to and from diffusers', which swaps the numbers of two norms."""
    return Keymap(prefix_rows(_ENDS) + block_rows(layers, "blocks", "blocks", _BLOCK))


def _config(size: WanSize) -> dict:
    return {
        "_class_name": "WanTransformer3DModel",
        "patch_size": list(PATCH),
        "num_attention_heads": size.hidden // 128,
        "attention_head_dim": 128,
        "in_channels": size.in_channels,
        "out_channels": size.out_channels,
        "text_dim": size.context_dim,
        "freq_dim": size.frequencies,
        "ffn_dim": size.mlp,
        "num_layers": size.layers,
        "cross_attn_norm": size.cross_norm,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-06,
        "image_dim": None,
        "added_kv_proj_dim": None,
        "rope_max_seq_len": 1024,
        "pos_embed_seq_len": None,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Divide a head's channels among frame, row and column as diffusers' WanRotaryPosEmbed does."""
    there = wan_size(shapes).cross_norm
    if given.get("cross_attn_norm", there) != there:
        raise BadInput(
            f"{path}: cross_attn_norm is {shown_value(given['cross_attn_norm'])}, but the blocks have "
            f"{'a' if there else 'no'} norm before cross-attention (norm2 in diffusers' files, norm3 in Wan's): "
            f"write {there}, or take the config.json of these weights"
        )
    eps = {"eps": positive(path, given, "eps", 1e-6)}
    if "attention_head_dim" not in given:
        return eps
    wide = divisor(path, given, "attention_head_dim", 128, dim(shapes, "patch_embedding.weight", 0, 128))
    side = 2 * (wide // 6)
    return {"axes_dim": [wide - 2 * side, side, side], **eps}


_NAMES = counted("diffusers", wan_keymap, {"blocks.": WAN_14B.layers}, lambda size: (size.layers,))

WAN_NETWORK = Network(
    "wan",
    "Wan",
    "denoiser",
    wan_size,
    wan_shapes,
    places=(
        Location(_NAMES, ("model.diffusion_model.", *FOLDER), ("condition_embedder.text_embedder.",)),
        Location(same("original"), DENOISER, ("text_embedding.0.", "blocks.0.cross_attn.norm_q.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _NAMES, _config),
    computed={
        "patch_size": (list(PATCH),),
        "qk_norm": ("rms_norm_across_heads",),
        "image_dim": (None,),
        "added_kv_proj_dim": (None,),
        "pos_embed_seq_len": (None,),
    },
    config=_read_config,
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (WAN_NETWORK,)
