"""Anima's transformer: sizes, tensors, names in files.

Names are NVIDIA's of Cosmos-Predict2. Anima's files hold the text conditioner besides (models/anima_conditioner).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, dim, read_size
from refsd.networks.fits import numbers
from refsd.networks.keymap import Keymap, block_rows, prefix_rows
from refsd.networks.naming import denoiser_namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same
from refsd.numerics.errors import BadInput

_PARTS = ("self_attn", "cross_attn", "mlp")


class AnimaSize(NamedTuple):
    """Dimensions of the transformer; the defaults are Anima's.

    head_dim:    channels of the norms of queries and keys
    rank:        of the blocks' modulations
    channels:    of the latent, without the padding mask
    context_dim: channels of the text conditioner's output
    """

    hidden: int = 2048
    layers: int = 28
    head_dim: int = 128
    mlp: int = 8192
    rank: int = 256
    channels: int = 16
    context_dim: int = 1024


ANIMA = AnimaSize()
_IN, _OUT, _NORM = "x_embedder.proj.1.weight", "final_layer.linear.weight", "t_embedding_norm.weight"


def anima_shapes(size: AnimaSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers CosmosTransformer3DModel, under NVIDIA's names."""
    D = size.hidden
    layers = {
        "x_embedder.proj.1": (4 * (size.channels + 1), D),
        "t_embedder.1.linear_1": (D, D),
        "t_embedder.1.linear_2": (D, 3 * D),
    }
    norms: Shapes = {_NORM: (D,)}
    for i in range(size.layers):
        at = f"blocks.{i}"
        for part, context in (("self_attn", D), ("cross_attn", size.context_dim)):
            layers |= {f"{at}.{part}.q_proj": (D, D)}
            layers |= {f"{at}.{part}.{name}_proj": (context, D) for name in "kv"}
            layers |= {f"{at}.{part}.output_proj": (D, D)}
            norms |= {f"{at}.{part}.{name}_norm.weight": (size.head_dim,) for name in "qk"}
        layers |= {f"{at}.mlp.layer1": (D, size.mlp), f"{at}.mlp.layer2": (size.mlp, D)}
        for part in _PARTS:
            layers |= {f"{at}.adaln_modulation_{part}.1": (D, size.rank)}
            layers |= {f"{at}.adaln_modulation_{part}.2": (size.rank, 3 * D)}
    layers |= {
        "final_layer.adaln_modulation.1": (D, size.rank),
        "final_layer.adaln_modulation.2": (size.rank, 2 * D),
    }
    layers |= {"final_layer.linear": (D, 4 * size.channels)}
    shapes: Shapes = {}
    for name, (inputs, outputs) in layers.items():
        shapes |= bare(name, inputs, outputs)
    return shapes | norms


def anima_size(shapes: Mapping[str, Shape]) -> AnimaSize:
    """Infer the size from shapes. Dimensions of missing tensors are Anima's."""
    return read_size(
        ANIMA,
        anima_shapes,
        shapes,
        layers=blocks(shapes, "blocks.", ANIMA.layers, (_IN, _OUT, _NORM)),
        channels=max(1, dim(shapes, _OUT, 0, 4 * ANIMA.channels) // 4),
    )


_AROUND = (
    ("x_embedder.proj.1", "patch_embed.proj"),
    ("t_embedder.1", "time_embed.t_embedder"),
    ("t_embedding_norm", "time_embed.norm"),
    ("final_layer.adaln_modulation.1", "norm_out.linear_1"),
    ("final_layer.adaln_modulation.2", "norm_out.linear_2"),
    ("final_layer.linear", "proj_out"),
)
_BLOCK = (
    *((f"adaln_modulation_{part}.{j}", f"norm{i}.linear_{j}") for i, part in enumerate(_PARTS, 1) for j in (1, 2)),
    *(
        (f"{part}.{ours}", f"attn{i}.{theirs}")
        for i, part in enumerate(_PARTS[:2], 1)
        for ours, theirs in (
            *((f"{name}_proj", f"to_{name}") for name in "qkv"),
            ("output_proj", "to_out.0"),
            *((f"{name}_norm", f"norm_{name}") for name in "qk"),
        )
    ),
    ("mlp.layer1", "ff.net.0.proj"),
    ("mlp.layer2", "ff.net.2"),
)


def anima_keymap(layers: int = 28) -> Keymap:
    """Map NVIDIA's names to and from diffusers'."""
    return Keymap(prefix_rows(_AROUND) + block_rows(layers, "blocks", "transformer_blocks", _BLOCK))


def _config(size: AnimaSize) -> dict[str, Any]:
    return {
        "_class_name": "CosmosTransformer3DModel",
        "in_channels": size.channels,
        "out_channels": size.channels,
        "num_attention_heads": size.hidden // size.head_dim,
        "attention_head_dim": size.head_dim,
        "num_layers": size.layers,
        "mlp_ratio": size.mlp / size.hidden,
        "text_embed_dim": size.context_dim,
        "adaln_lora_dim": size.rank,
        "max_size": [128, 240, 240],
        "patch_size": [1, 2, 2],
        "rope_scale": [1.0, 4.0, 4.0],
        "concat_padding_mask": True,
        "extra_pos_embed_type": None,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    scale = given.get("rope_scale", [1.0, 4.0, 4.0])
    if not numbers(3, above_zero=True).holds(scale):
        raise BadInput(f"{path}: rope_scale is {shown_value(scale)}; three numbers above 0 expected")
    return {"rope_scale": [float(s) for s in scale]}


_DIFFUSERS = counted("diffusers", anima_keymap, {"transformer_blocks.": ANIMA.layers}, lambda size: (size.layers,))
_PREFIXES = ("net.", *DENOISER, *FOLDER)

ANIMA_NETWORK = Network(
    "anima",
    "Anima",
    "denoiser",
    anima_size,
    anima_shapes,
    places=(
        Location(_DIFFUSERS, _PREFIXES, ("transformer_blocks.0.norm1.linear_1.", "time_embed.t_embedder.")),
        Location(same("original"), _PREFIXES, ("blocks.0.adaln_modulation_self_attn.", "t_embedding_norm.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _config),
    computed={
        "patch_size": ([1, 2, 2],),
        "max_size": ([128, 240, 240],),
        "concat_padding_mask": (True,),
        "extra_pos_embed_type": (None,),
        "use_crossattn_projection": (False,),
        "img_context_dim_in": (None,),
    },
    config=_read_config,
    unread=("pos_embedder.*", "accum_*", "*._extra_state"),
    adapters=denoiser_namings(),
)
NETWORKS = (ANIMA_NETWORK,)
