"""Anima's text conditioner: sizes, tensors, names in files.

Anima's files hold it beside the transformer, under `llm_adapter.`; diffusers' folders in a folder of its own.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.models.anima_conditioner import LENGTH
from refsd.networks.dimensions import Shape, Shapes, bare, count, linear, read_size
from refsd.networks.naming import namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, Folder, Location, Network, same
from refsd.networks.recipe import alone

_PARTS = ("self_attn", "cross_attn")


class ConditionerSize(NamedTuple):
    """Dimensions of the text conditioner; the defaults are Anima's.

    head_dim:    channels of the norms of queries and keys
    vocab:       T5's token ids
    context_dim: channels of Qwen3's hidden states
    """

    hidden: int = 1024
    layers: int = 6
    head_dim: int = 64
    mlp: int = 4096
    vocab: int = 32128
    context_dim: int = 1024


CONDITIONER = ConditionerSize()


def conditioner_shapes(size: ConditionerSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers AnimaTextConditioner."""
    D = size.hidden
    shapes: Shapes = {"embed.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"blocks.{i}"
        for part, context in zip(_PARTS, (D, size.context_dim), strict=True):
            shapes[f"{at}.norm_{part}.weight"] = (D,)
            for name, inputs in (("q", D), ("k", context), ("v", context), ("o", D)):
                shapes |= bare(f"{at}.{part}.{name}_proj", inputs, D)
            shapes |= {f"{at}.{part}.{name}_norm.weight": (size.head_dim,) for name in "qk"}
        shapes[f"{at}.norm_mlp.weight"] = (D,)
        shapes |= linear(f"{at}.mlp.0", D, size.mlp) | linear(f"{at}.mlp.2", size.mlp, D)
    return shapes | linear("out_proj", D, D) | {"norm.weight": (D,)}


def conditioner_size(shapes: Mapping[str, Shape]) -> ConditionerSize:
    """Infer the size from shapes. Dimensions of missing tensors are Anima's."""
    layers = count(shapes, "blocks.", CONDITIONER.layers)
    return read_size(CONDITIONER, conditioner_shapes, shapes, layers=layers)


def _config(size: ConditionerSize) -> dict[str, Any]:
    return {
        "_class_name": "AnimaTextConditioner",
        "source_dim": size.context_dim,
        "target_dim": size.hidden,
        "model_dim": size.hidden,
        "num_layers": size.layers,
        "num_attention_heads": size.hidden // size.head_dim,
        "mlp_ratio": size.mlp / size.hidden,
        "target_vocab_size": size.vocab,
        "use_self_attention": True,
        "use_layer_norm": False,
        "min_sequence_length": LENGTH,
    }


TINY_CONDITIONER = CONDITIONER._replace(hidden=128, layers=2, mlp=256, vocab=1000, context_dim=128)
_IN_FILES = tuple(f"{prefix}llm_adapter." for prefix in ("net.", *DENOISER))

ANIMA_CONDITIONER = Network(
    "anima-conditioner",
    "Anima's text conditioner",
    "text conditioner",
    conditioner_size,
    conditioner_shapes,
    places=(
        Location(
            same("original"), (*_IN_FILES, "text_conditioner.", ""), ("blocks.0.norm_cross_attn.", "embed.weight")
        ),
    ),
    folder=Folder("text_conditioner", DIFFUSERS_FILE, same("diffusers"), _config),
    computed={
        "use_self_attention": (True,),
        "use_layer_norm": (False,),
        "min_sequence_length": (LENGTH,),
    },
    unread=("rotary_emb.inv_freq",),
    recipes={"anima-conditioner": alone("anima-conditioner", CONDITIONER, TINY_CONDITIONER, "anima-conditioner")},
    adapters=namings(("original",), (), ("text_conditioner.", "diffusion_model.llm_adapter.")),
)
NETWORKS = (ANIMA_CONDITIONER,)
