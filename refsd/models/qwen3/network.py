"""Qwen3, the language model that encodes Z-Image's and FLUX.2 klein's prompts: sizes, tensors, names in files."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.language_model.config import LANGUAGE_MODEL_FIELDS, llm_config, turning
from refsd.models.language_model.llama_cpp_names import GGUF_ENDS, GGUF_LAYER, gguf_keymap
from refsd.models.language_model.network import LLM_PREFIXES, NOT_TEXT, decoder_keymap, decoder_shapes, decoder_size
from refsd.networks.dimensions import Shape, Shapes, dim
from refsd.networks.keymap import Keymap
from refsd.networks.naming import ENCODER_LAYOUTS, namings
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Location, Network, counted, fixed
from refsd.networks.recipe import alone


class Qwen3Size(NamedTuple):
    """Dimensions of the model; the defaults are Qwen3-4B's."""

    hidden: int = 2560
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 9728
    vocab: int = 151936


QWEN3_4B = Qwen3Size()
QWEN3_06B = Qwen3Size(hidden=1024, layers=28, heads=16, mlp=3072)


def qwen3_shapes(size: Qwen3Size) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' Qwen3ForCausalLM, without its output head."""
    return decoder_shapes(size, head_norms=True)


def qwen3_size(shapes: Mapping[str, Shape]) -> Qwen3Size:
    """Infer the size from shapes under transformers' names. Dimensions of missing tensors are Qwen3-4B's."""
    usual = Qwen3Size()
    attention = "model.layers.0.self_attn"
    key_norm = dim(shapes, f"{attention}.k_norm.weight", 0, usual.head_dim)
    return decoder_size(usual, shapes, dim(shapes, f"{attention}.q_norm.weight", 0, key_norm))


def qwen3_gguf_keymap(layers: int = 36) -> Keymap:
    """Map transformers' names to and from llama.cpp's GGUF of Qwen3."""
    return gguf_keymap(GGUF_ENDS, GGUF_LAYER, layers, "model.layers", "blk")


_TRANSFORMERS = fixed("transformers", decoder_keymap)

_TINY = Qwen3Size(128, 3, 6, 2, mlp=256, vocab=1000)
_NARROW = Qwen3Size(64, 36, mlp=192, vocab=1000)

QWEN3 = Network(
    "qwen3",
    "Qwen3",
    "text encoder",
    qwen3_size,
    qwen3_shapes,
    places=(
        Location(
            _TRANSFORMERS,
            ("text_encoders.qwen3_4b.transformer.", "text_encoders.qwen3_8b.transformer.", *LLM_PREFIXES),
            ("model.layers.0.self_attn.q_norm.", "layers.0.self_attn.q_norm."),
        ),
        Location(
            counted("llama.cpp", qwen3_gguf_keymap, {"blk.": 36}, lambda size: (size.layers,)),
            ("",),
            ("blk.0.attn_q_norm.",),
        ),
    ),
    folder=Folder(
        "text_encoder",
        TRANSFORMERS_FILE,
        _TRANSFORMERS,
        lambda size: llm_config(size, "Qwen3ForCausalLM", "qwen3", 1e-06, 1000000),
    ),
    computed=LANGUAGE_MODEL_FIELDS,
    config=turning(theta=1e6, eps=1e-6),
    nested=("text_config", "rope_parameters"),
    unread=NOT_TEXT,
    adapters=namings(
        ENCODER_LAYOUTS, ("lora_te_", "lora_te1_"), ("text_encoder.", "text_encoders.qwen3_4b.transformer.")
    ),
    before=("mistral",),
    recipes={
        "qwen3-0.6b": alone("qwen3", QWEN3_06B, _TINY, "qwen3"),
        "qwen3-4b": alone("qwen3", QWEN3_4B, _TINY, "qwen3"),
        # Deep enough for the layers whose hidden states make up a denoiser's context.
        "qwen3-narrow": alone("qwen3", _NARROW, _NARROW, "qwen3"),
    },
)
NETWORKS = (QWEN3,)
