"""The transformer of FLUX.1 (dev, schnell, Fill, Canny, Depth, Kontext): sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.flux.norm_names import ORIGINAL
from refsd.networks.config import rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, blocks, dim, has, linear, read_size
from refsd.networks.keymap import CONCAT, SWAP, Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, Rows, counted


class FluxSize(NamedTuple):
    """Dimensions of the transformer; the defaults are FLUX.1-dev's.

    in_channels, out_channels: channels of a token, 4 for each latent channel
    head_dim:                  channels of the norms of queries and keys
    pooled:                    channels of CLIP's pooled text embedding
    frequencies:               channels of the sinusoidal time embedding
    """

    hidden: int = 3072
    double_blocks: int = 19
    single_blocks: int = 38
    head_dim: int = 128
    mlp: int = 12288
    in_channels: int = 64
    out_channels: int = 64
    context_dim: int = 4096
    pooled: int = 768
    frequencies: int = 256
    guidance: bool = True


FLUX_DEV = FluxSize()
FLUX_SCHNELL = FluxSize(guidance=False)
FLUX_FILL = FluxSize(in_channels=384)
FLUX_CONTROL = FluxSize(in_channels=128)


def flux_shapes(size: FluxSize) -> Shapes:
    """Return the shapes of all tensors. Source: black-forest-labs/flux, model.py: Flux."""
    D = size.hidden
    shapes = linear("img_in", size.in_channels, D) | embedder("time_in", size.frequencies, D)
    shapes |= embedder("vector_in", size.pooled, D)
    if size.guidance:
        shapes |= embedder("guidance_in", size.frequencies, D)
    shapes |= linear("txt_in", size.context_dim, D)
    for i in range(size.double_blocks):
        at = f"double_blocks.{i}"
        for stream in ("img", "txt"):
            shapes |= linear(f"{at}.{stream}_mod.lin", D, 6 * D)
            shapes |= double_stream(at, stream, D, size.head_dim, size.mlp)
    for i in range(size.single_blocks):
        at = f"single_blocks.{i}"
        shapes |= single_stream(at, D, size.head_dim, size.mlp) | linear(f"{at}.modulation.lin", D, 3 * D)
    shapes |= linear("final_layer.linear", D, size.out_channels)
    return shapes | linear("final_layer.adaLN_modulation.1", D, 2 * D)


# Tensors before and after the blocks. In a file that has them, a kind of block without tensors counts as absent.
AROUND = ("img_in.weight", "txt_in.weight", "final_layer.linear.weight")
# The query norm of the first double and of the first single block.
QUERY_NORMS = ("double_blocks.0.img_attn.norm.query_norm.scale", "single_blocks.0.norm.query_norm.scale")


def flux_size(shapes: Mapping[str, Shape]) -> FluxSize:
    """Infer the size from shapes under the original's names; guidance is True if guidance_in exists.

    Dimensions of missing tensors are FLUX.1-dev's.
    """
    guidance = has(shapes, "guidance_in.") or not has(shapes, "img_in.")
    return read_size(FluxSize(), flux_shapes, shapes, **trunk_blocks(shapes), guidance=guidance)


def trunk_blocks(shapes: Mapping[str, Shape], around: tuple[str, ...] = AROUND) -> dict[str, int]:
    """Infer the numbers of blocks, and the width of their MLPs, which FLUX.1 and Chroma share."""
    usual = FluxSize()
    hidden = dim(shapes, "img_in.weight", 0, dim(shapes, "img_in.bias", 0, usual.hidden))
    mlp = dim(shapes, "single_blocks.0.linear2.weight", 1, 5 * hidden) - hidden
    return {
        "double_blocks": blocks(shapes, "double_blocks.", usual.double_blocks, around),
        "single_blocks": blocks(shapes, "single_blocks.", usual.single_blocks, around),
        "mlp": dim(shapes, "double_blocks.0.img_mlp.0.weight", 0, mlp if mlp > 0 else 4 * hidden),
    }


def embedder(name: str, inputs: int, outputs: int) -> Shapes:
    """Return the shapes of an MLPEmbedder. Source: modules/layers.py: MLPEmbedder."""
    return linear(f"{name}.in_layer", inputs, outputs) | linear(f"{name}.out_layer", outputs, outputs)


def double_stream(at: str, stream: str, hidden: int, head_dim: int, mlp: int) -> Shapes:
    """Return the shapes of one stream ("img" or "txt") of a DoubleStreamBlock, without its modulation."""
    shapes = linear(f"{at}.{stream}_attn.qkv", hidden, 3 * hidden)
    shapes |= qk_norm(f"{at}.{stream}_attn.norm", head_dim) | linear(f"{at}.{stream}_attn.proj", hidden, hidden)
    return shapes | linear(f"{at}.{stream}_mlp.0", hidden, mlp) | linear(f"{at}.{stream}_mlp.2", mlp, hidden)


def single_stream(at: str, hidden: int, head_dim: int, mlp: int) -> Shapes:
    """Return the shapes of a SingleStreamBlock, without its modulation."""
    shapes = linear(f"{at}.linear1", hidden, 3 * hidden + mlp) | linear(f"{at}.linear2", hidden + mlp, hidden)
    return shapes | qk_norm(f"{at}.norm", head_dim)


def qk_norm(at: str, head_dim: int) -> Shapes:
    return {f"{at}.{which}_norm.scale": (head_dim,) for which in ("query", "key")}


FLUX_ENDS = (
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    ("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    ("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    ("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    ("final_layer.linear", "proj_out"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear", SWAP),
)
# (original's name, diffusers' names, rule) of the joint attention, which FLUX.2 has too.
JOINT_ATTENTION = (
    ("img_attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("txt_attn.qkv", ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), CONCAT),
    ("img_attn.norm.query_norm.scale", "attn.norm_q.weight"),
    ("img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
    ("txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
    ("txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"),
    ("img_attn.proj", "attn.to_out.0"),
    ("txt_attn.proj", "attn.to_add_out"),
)
FLUX_DOUBLE = (
    ("img_mod.lin", "norm1.linear"),
    ("txt_mod.lin", "norm1_context.linear"),
    *JOINT_ATTENTION,
    ("img_mlp.0", "ff.net.0.proj"),
    ("img_mlp.2", "ff.net.2"),
    ("txt_mlp.0", "ff_context.net.0.proj"),
    ("txt_mlp.2", "ff_context.net.2"),
)
FLUX_SINGLE = (
    ("modulation.lin", "norm.linear"),
    ("linear1", ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), CONCAT),
    ("linear2", "proj_out"),
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
)


def flux_keymap(double_blocks: int = 19, single_blocks: int = 38) -> Keymap:
    """Map FLUX.1's names to and from diffusers' FluxTransformer2DModel.

    diffusers splits q, k, v, and swaps scale and shift of the last modulation.
    """
    rows = prefix_rows(FLUX_ENDS)
    rows += block_rows(double_blocks, "double_blocks", "transformer_blocks", FLUX_DOUBLE)
    rows += block_rows(single_blocks, "single_blocks", "single_transformer_blocks", FLUX_SINGLE)
    return Keymap(rows)


def _flux_config(size) -> dict:
    return {
        "_class_name": "FluxTransformer2DModel",
        **trunk_config(size),
        "out_channels": size.out_channels,
        "pooled_projection_dim": size.pooled,
        "guidance_embeds": size.guidance,
        "axes_dims_rope": [16, 56, 56],
    }


def trunk_config(size) -> dict:
    return {
        "patch_size": 1,
        "in_channels": size.in_channels,
        "num_layers": size.double_blocks,
        "num_single_layers": size.single_blocks,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "joint_attention_dim": size.context_dim,
    }


def single_linear1_rows(size) -> Rows:
    """Split linear1 of a single block into the rows of q, k, v and of the MLP's input."""
    D = size.hidden

    def rows(name: str, shape: Shape):
        return (D, D, D, size.mlp) if name.startswith("single_blocks.") and ".linear1." in name else None

    return rows


def read_axes(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {"axes_dim": rotary_axes_of_heads(path, given, [16, 56, 56])}


FLUX_FIELDS = {"patch_size": (1,)}
BLOCKS = {"transformer_blocks.": 19, "single_transformer_blocks.": 38}
_DIFFUSERS = counted("diffusers", flux_keymap, BLOCKS, lambda size: (size.double_blocks, size.single_blocks))

FLUX = Network(
    "flux",
    "FLUX.1",
    "denoiser",
    flux_size,
    flux_shapes,
    places=(
        Location(ORIGINAL, DENOISER, ("double_blocks.", "single_blocks.")),
        Location(_DIFFUSERS, FOLDER, ("single_transformer_blocks.", "time_text_embed.text_embedder.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _flux_config, single_linear1_rows),
    computed=FLUX_FIELDS,
    config=read_axes,
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (FLUX,)
