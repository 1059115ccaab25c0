"""The MMDiT of Stable Diffusion 3 and 3.5: sizes, tensors, names in files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import divisor
from refsd.networks.dimensions import Shape, Shapes, blocks, conv, dim, linear
from refsd.networks.keymap import CONCAT, SAME, SWAP, Keymap, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same


class MMDiTSize(NamedTuple):
    """Dimensions of the MMDiT; the defaults are SD3 medium's.

    channels:    latent channels
    table:       side of the square table of position embeddings, in patches
    frequencies: channels of the sinusoidal time embedding
    qk_norm:     channels of the norms of queries and keys (a head's); 0: there are none
    dual:        indices of MMDiT-X's blocks, whose img stream has a second attention
    """

    hidden: int = 1536
    blocks: int = 24
    mlp: int = 6144
    channels: int = 16
    patch: int = 2
    table: int = 192
    context_dim: int = 4096
    pooled: int = 2048
    frequencies: int = 256
    qk_norm: int = 0
    dual: tuple[int, ...] = ()


SD3_MEDIUM = MMDiTSize()
SD35_MEDIUM = MMDiTSize(table=384, qk_norm=64, dual=tuple(range(13)))
SD35_LARGE = MMDiTSize(hidden=2432, blocks=38, mlp=9728, qk_norm=64)


def mmdit_shapes(size: MMDiTSize) -> Shapes:
    """Return the shapes of all tensors. Source: Stability-AI/sd3.5, mmditx.py: MMDiTX."""
    D, p = size.hidden, size.patch
    shapes: Shapes = {"pos_embed": (1, size.table**2, D)} | conv("x_embedder.proj", size.channels, D, p)
    for name, inputs in (("t_embedder", size.frequencies), ("y_embedder", size.pooled)):
        shapes |= linear(f"{name}.mlp.0", inputs, D) | linear(f"{name}.mlp.2", D, D)
    shapes |= linear("context_embedder", size.context_dim, D)
    for i in range(size.blocks):
        shapes |= _block(f"joint_blocks.{i}.context_block", size, last=i == size.blocks - 1)
        shapes |= _block(f"joint_blocks.{i}.x_block", size, dual=i in size.dual)
    shapes |= linear("final_layer.linear", D, p * p * size.channels)
    return shapes | linear("final_layer.adaLN_modulation.1", D, 2 * D)


_AROUND = ("x_embedder.proj.weight", "context_embedder.weight", "final_layer.linear.weight")


def mmdit_size(shapes: Mapping[str, Shape]) -> MMDiTSize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are SD3 medium's."""
    usual = MMDiTSize()
    proj, attention, fc1 = "x_embedder.proj", "joint_blocks.0.x_block.attn", "joint_blocks.0.x_block.mlp.fc1"
    hidden = dim(shapes, f"{proj}.weight", 0, dim(shapes, f"{proj}.bias", 0, usual.hidden))
    n = blocks(shapes, "joint_blocks.", usual.blocks, _AROUND)
    key_norm = dim(shapes, f"{attention}.ln_k.weight", 0, 0)
    duals = {name.split(".")[1] for name in shapes if ".x_block.attn2." in name}
    return MMDiTSize(
        hidden=hidden,
        blocks=n,
        mlp=dim(shapes, f"{fc1}.weight", 0, dim(shapes, f"{fc1}.bias", 0, 4 * hidden)),
        channels=dim(shapes, f"{proj}.weight", 1, usual.channels),
        patch=dim(shapes, f"{proj}.weight", 2, usual.patch),
        table=max(1, math.isqrt(dim(shapes, "pos_embed", 1, usual.table**2))),
        context_dim=dim(shapes, "context_embedder.weight", 1, usual.context_dim),
        pooled=dim(shapes, "y_embedder.mlp.0.weight", 1, usual.pooled),
        frequencies=dim(shapes, "t_embedder.mlp.0.weight", 1, usual.frequencies),
        qk_norm=dim(shapes, f"{attention}.ln_q.weight", 0, key_norm),
        dual=tuple(i for i in range(n) if str(i) in duals),
    )


def _block(at: str, size: MMDiTSize, dual: bool = False, last: bool = False) -> Shapes:
    """Return the shapes of one stream of a joint block.

    last: True for the txt stream of the last block, which has no output and so no layers after the attention
    """
    D = size.hidden
    shapes: Shapes = {}
    for attention in ("attn", "attn2") if dual else ("attn",):
        shapes |= linear(f"{at}.{attention}.qkv", D, 3 * D)
        if not last:
            shapes |= linear(f"{at}.{attention}.proj", D, D)
        if size.qk_norm:
            shapes |= {f"{at}.{attention}.ln_{which}.weight": (size.qk_norm,) for which in "qk"}
    if not last:
        shapes |= linear(f"{at}.mlp.fc1", D, size.mlp) | linear(f"{at}.mlp.fc2", size.mlp, D)
    return shapes | linear(f"{at}.adaLN_modulation.1", D, (2 if last else 9 if dual else 6) * D)


_ENDS = (
    ("pos_embed", "pos_embed.pos_embed"),
    ("x_embedder.proj", "pos_embed.proj"),
    ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
    ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
    ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
    ("context_embedder", "context_embedder"),
    ("final_layer.linear", "proj_out"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear", SWAP),
)
_BLOCK = (
    ("x_block.adaLN_modulation.1", "norm1.linear"),
    ("x_block.attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("x_block.attn.ln_q", "attn.norm_q"),
    ("x_block.attn.ln_k", "attn.norm_k"),
    ("x_block.attn.proj", "attn.to_out.0"),
    ("x_block.attn2.qkv", ("attn2.to_q", "attn2.to_k", "attn2.to_v"), CONCAT),
    ("x_block.attn2.ln_q", "attn2.norm_q"),
    ("x_block.attn2.ln_k", "attn2.norm_k"),
    ("x_block.attn2.proj", "attn2.to_out.0"),
    ("x_block.mlp.fc1", "ff.net.0.proj"),
    ("x_block.mlp.fc2", "ff.net.2"),
    ("context_block.attn.qkv", ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), CONCAT),
    ("context_block.attn.ln_q", "attn.norm_added_q"),
    ("context_block.attn.ln_k", "attn.norm_added_k"),
    ("context_block.attn.proj", "attn.to_add_out"),
    ("context_block.mlp.fc1", "ff_context.net.0.proj"),
    ("context_block.mlp.fc2", "ff_context.net.2"),
)


def mmdit_keymap(joint_blocks: int = 24) -> Keymap:
    """Map SD3's and SD3.5's names to and from diffusers'.

    diffusers splits q, k, v, and swaps scale and shift of the last modulation of either stream.
    """
    rows = prefix_rows(_ENDS)
    for i in range(joint_blocks):
        ours, theirs = f"joint_blocks.{i}.", f"transformer_blocks.{i}."
        last = SWAP if i == joint_blocks - 1 else SAME
        modulation = ("context_block.adaLN_modulation.1", "norm1_context.linear", last)
        rows += prefix_rows((*_BLOCK, modulation), ours, theirs)
    return Keymap(rows)


def _mmdit_config(size) -> dict:
    return {
        "_class_name": "SD3Transformer2DModel",
        "sample_size": 128,
        "patch_size": size.patch,
        "in_channels": size.channels,
        "out_channels": size.channels,
        "num_layers": size.blocks,
        "attention_head_dim": 64,
        "num_attention_heads": size.hidden // 64,
        "joint_attention_dim": size.context_dim,
        "caption_projection_dim": size.hidden,
        "pooled_projection_dim": size.pooled,
        "pos_embed_max_size": size.table,
        "dual_attention_layers": list(size.dual),
        "qk_norm": "rms_norm" if size.qk_norm else None,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {"head_dim": divisor(path, given, "attention_head_dim", 64, mmdit_size(shapes).hidden)}


_DIFFUSERS = counted("diffusers", mmdit_keymap, {"transformer_blocks.": 24}, lambda size: (size.blocks,))

MMDIT = Network(
    "mmdit",
    "MMDiT",
    "denoiser",
    mmdit_size,
    mmdit_shapes,
    places=(
        Location(same("original"), DENOISER, ("joint_blocks.",)),
        Location(_DIFFUSERS, FOLDER, ("pos_embed.proj.",)),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _mmdit_config),
    computed={"qk_norm": (None, "rms_norm")},
    config=_read_config,
    adapters=DENOISER_NAMINGS,
    before=("flux",),
)
NETWORKS = (MMDIT,)
