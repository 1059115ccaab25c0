"""Gemma 2, the language model that encodes Lumina 2's prompts: sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.language_model.config import llm_config, possible_head_dim, read_head_dim, turning
from refsd.models.language_model.network import LLM_PREFIXES, NOT_TEXT, decoder_keymap, decoder_shapes, decoder_size
from refsd.networks.config import positive, whole
from refsd.networks.dimensions import Shape, Shapes
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Location, Network, fixed
from refsd.networks.recipe import alone


class Gemma2Size(NamedTuple):
    """Dimensions of the model; the defaults are Gemma 2 2B's, whose heads have 256 channels."""

    hidden: int = 2304
    layers: int = 26
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 256
    mlp: int = 9216
    vocab: int = 256000


GEMMA2_2B = Gemma2Size()
_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")


def gemma2_shapes(size: Gemma2Size) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' Gemma2ForCausalLM, without its output head."""
    return decoder_shapes(size, _NORMS)


def gemma2_size(shapes: Mapping[str, Shape]) -> Gemma2Size:
    """Infer the size from shapes under transformers' names; head_dim is a guess, which fits them.

    Dimensions of missing tensors are Gemma 2 2B's.
    """
    return decoder_size(GEMMA2_2B, shapes, possible_head_dim(shapes, GEMMA2_2B.head_dim))


def _config(size: Gemma2Size) -> dict:
    config = llm_config(size, "Gemma2ForCausalLM", "gemma2", 1e-06, 10000.0)
    return config | {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "bos_token_id": 2,
        "pad_token_id": 0,
        "query_pre_attn_scalar": size.head_dim,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }


_TURNING = turning(theta=10000.0, eps=1e-6)


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {
        **read_head_dim(path, shapes, given, 256),
        **_TURNING(path, shapes, given),
        "scalar": positive(path, given, "query_pre_attn_scalar", 256.0),
        "cap": positive(path, given, "attn_logit_softcapping", 50.0),
        "window": whole(path, given, "sliding_window", 4096),
    }


_TRANSFORMERS = fixed("transformers", decoder_keymap)

GEMMA2 = Network(
    "gemma2",
    "Gemma 2",
    "text encoder",
    gemma2_size,
    gemma2_shapes,
    places=(
        Location(
            _TRANSFORMERS,
            ("text_encoders.gemma2_2b.transformer.", *LLM_PREFIXES),
            ("model.layers.0.pre_feedforward_layernorm.", "layers.0.pre_feedforward_layernorm."),
        ),
    ),
    folder=Folder("text_encoder", TRANSFORMERS_FILE, _TRANSFORMERS, _config),
    computed={
        "hidden_activation": ("gelu_pytorch_tanh",),
        "rope_type": ("default",),
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "use_bidirectional_attention": (None, False),
    },
    config=_read_config,
    nested=("rope_parameters",),
    unread=NOT_TEXT,
    before=("mistral",),
    recipes={"gemma2-2b": alone("gemma2", GEMMA2_2B, Gemma2Size(128, 3, 2, 1, mlp=256, vocab=1000), "gemma2")},
)
NETWORKS = (GEMMA2,)
