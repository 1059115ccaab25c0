"""The transformer of FLUX.2 (dev and klein): sizes, tensors, names in files.

No tensor tells klein-9b-kv from klein-9B: the pipeline that a folder's model_index.json names does.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.files.json_files import read_json
from refsd.models.flux.network import AROUND, JOINT_ATTENTION, qk_norm, trunk_config
from refsd.models.flux.norm_names import ORIGINAL
from refsd.networks.config import positive, rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, dim, has, read_size
from refsd.networks.keymap import SWAP, Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted


class Flux2Size(NamedTuple):
    """Dimensions of the transformer; the defaults are FLUX.2 dev's.

    in_channels: channels of a token, which is one position of the packed latent
    context_dim: channels of three concatenated hidden states
    frequencies: channels of the sinusoidal time embedding
    """

    hidden: int = 6144
    double_blocks: int = 8
    single_blocks: int = 48
    head_dim: int = 128
    mlp: int = 3 * 6144
    in_channels: int = 128
    context_dim: int = 3 * 5120
    guidance: bool = True
    frequencies: int = 256


FLUX2_DEV = Flux2Size()
FLUX2_KLEIN_4B = Flux2Size(3072, 5, 20, mlp=3 * 3072, context_dim=3 * 2560, guidance=False)
FLUX2_KLEIN_9B = Flux2Size(4096, 8, 24, mlp=3 * 4096, context_dim=3 * 4096, guidance=False)


def flux2_shapes(size: Flux2Size) -> Shapes:
    """Return the shapes of all tensors. Source: black-forest-labs/flux2, model.py: Flux2."""
    D = size.hidden
    shapes = bare("img_in", size.in_channels, D) | _embedder("time_in", size.frequencies, D)
    if size.guidance:
        shapes |= _embedder("guidance_in", size.frequencies, D)
    shapes |= bare("txt_in", size.context_dim, D)
    for i in range(size.double_blocks):
        for stream in ("img", "txt"):
            at = f"double_blocks.{i}.{stream}"
            shapes |= bare(f"{at}_attn.qkv", D, 3 * D) | qk_norm(f"{at}_attn.norm", size.head_dim)
            shapes |= bare(f"{at}_attn.proj", D, D)
            shapes |= bare(f"{at}_mlp.0", D, 2 * size.mlp) | bare(f"{at}_mlp.2", size.mlp, D)
    for i in range(size.single_blocks):
        at = f"single_blocks.{i}"
        shapes |= bare(f"{at}.linear1", D, 3 * D + 2 * size.mlp) | bare(f"{at}.linear2", D + size.mlp, D)
        shapes |= qk_norm(f"{at}.norm", size.head_dim)
    for stream in ("img", "txt"):
        shapes |= bare(f"double_stream_modulation_{stream}.lin", D, 6 * D)
    shapes |= bare("single_stream_modulation.lin", D, 3 * D) | bare("final_layer.linear", D, size.in_channels)
    return shapes | bare("final_layer.adaLN_modulation.1", D, 2 * D)


def _embedder(name: str, frequencies: int, hidden: int) -> Shapes:
    return bare(f"{name}.in_layer", frequencies, hidden) | bare(f"{name}.out_layer", hidden, hidden)


def flux2_size(shapes: Mapping[str, Shape]) -> Flux2Size:
    """Infer the size from shapes under the original's names; guidance is True if guidance_in exists.

    Dimensions of missing tensors are dev's.
    """
    usual = FLUX2_DEV
    hidden = dim(shapes, "img_in.weight", 0, dim(shapes, "final_layer.linear.weight", 1, usual.hidden))
    mlp = dim(shapes, "single_blocks.0.linear2.weight", 1, 4 * hidden) - hidden
    return read_size(
        usual,
        flux2_shapes,
        shapes,
        double_blocks=blocks(shapes, "double_blocks.", usual.double_blocks, AROUND),
        single_blocks=blocks(shapes, "single_blocks.", usual.single_blocks, AROUND),
        mlp=dim(shapes, "double_blocks.0.img_mlp.2.weight", 1, mlp if mlp > 0 else 3 * hidden),
        guidance=has(shapes, "guidance_in.") or not shapes,
    )


# (original's name, diffusers' names, rule); several names of diffusers are concatenated.
_ENDS = (
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"),
    ("guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_guidance_embed.guidance_embedder.linear_2"),
    ("double_stream_modulation_img.lin", "double_stream_modulation_img.linear"),
    ("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"),
    ("single_stream_modulation.lin", "single_stream_modulation.linear"),
    ("final_layer.linear", "proj_out"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear", SWAP),
)
_DOUBLE = (
    *JOINT_ATTENTION,
    ("img_mlp.0", "ff.linear_in"),
    ("img_mlp.2", "ff.linear_out"),
    ("txt_mlp.0", "ff_context.linear_in"),
    ("txt_mlp.2", "ff_context.linear_out"),
)
_SINGLE = (
    ("linear1", "attn.to_qkv_mlp_proj"),
    ("linear2", "attn.to_out"),
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
)


def flux2_keymap(double_blocks: int = 8, single_blocks: int = 48) -> Keymap:
    """Map FLUX.2's names to and from diffusers' Flux2Transformer2DModel.

    diffusers splits q, k, v of the double blocks, and swaps scale and shift of the last modulation.
    """
    rows = prefix_rows(_ENDS)
    rows += block_rows(double_blocks, "double_blocks", "transformer_blocks", _DOUBLE)
    rows += block_rows(single_blocks, "single_blocks", "single_transformer_blocks", _SINGLE)
    return Keymap(rows)


def _flux2_config(size) -> dict:
    return {
        "_class_name": "Flux2Transformer2DModel",
        **trunk_config(size),
        "mlp_ratio": size.mlp / size.hidden,
        "timestep_guidance_channels": size.frequencies,
        "guidance_embeds": size.guidance,
        "axes_dims_rope": [32, 32, 32, 32],
        "rope_theta": 2000,
    }


_DIFFUSERS = counted(
    "diffusers",
    flux2_keymap,
    {"transformer_blocks.": 8, "single_transformer_blocks.": 48},
    lambda size: (size.double_blocks, size.single_blocks),
)


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    index = path.parents[1] / "model_index.json" if path.name == "config.json" else None
    program = read_json(index).get("_class_name") if index is not None and index.is_file() else None
    return {
        "axes_dim": rotary_axes_of_heads(path, given, [32, 32, 32, 32]),
        "theta": positive(path, given, "rope_theta", 2000.0),
        "eps": positive(path, given, "eps", 1e-6),
        "cached_references": program == "Flux2KleinKVPipeline",
    }


FLUX2 = Network(
    "flux2",
    "FLUX.2",
    "denoiser",
    flux2_size,
    flux2_shapes,
    places=(
        Location(_DIFFUSERS, FOLDER, ("double_stream_modulation_img.linear.",)),
        Location(ORIGINAL, DENOISER, ("double_stream_modulation_img.",)),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _flux2_config),
    computed={"patch_size": (1,)},
    config=_read_config,
    adapters=DENOISER_NAMINGS,
    before=("flux",),
)
NETWORKS = (FLUX2,)
