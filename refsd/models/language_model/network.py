"""What Qwen3, Mistral and Gemma 2 share: tensors, prefixes in files, config.json, tensors that refsd ignores."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refsd.models.language_model.llama_cpp_names import HEADLESS
from refsd.networks.config import divisor, positive, shown_value
from refsd.networks.dimensions import Shape, Shapes, Size, count, dim
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import ReadConfig
from refsd.numerics.errors import BadInput

_ROWS = {"num_attention_heads": "q_proj", "num_key_value_heads": "k_proj"}


def decoder_shapes(size, norms=("input", "post_attention"), head_norms=False, final_norm=True) -> Shapes:
    """Return the shapes of a language model's tensors, without its output head, under transformers' names.

    size:       has hidden, layers, heads, kv_heads, head_dim, mlp and vocab
    norms:      of a layer, without "_layernorm"
    head_norms: True if queries and keys are normalised, each head by itself

    Source: transformers' Qwen3ForCausalLM, MistralForCausalLM and Gemma2ForCausalLM.
    """
    D, queries, keys = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"model.layers.{i}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, D)
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (keys, D) for name in "kv"}
        shapes[f"{at}.self_attn.o_proj.weight"] = (D, queries)
        shapes |= {f"{at}.self_attn.{name}_norm.weight": (size.head_dim,) for name in "qk" if head_norms}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (size.mlp, D) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (D, size.mlp)
        shapes |= {f"{at}.{name}_layernorm.weight": (D,) for name in norms}
    return shapes | ({"model.norm.weight": (D,)} if final_norm else {})


def decoder_size(usual: Size, shapes: Mapping[str, Shape], head_dim: int) -> Size:
    """Infer a language model's size from shapes under transformers' names.

    usual:    the size that gives the dimensions of missing tensors
    head_dim: channels of a head
    """
    tokens, layer = "model.embed_tokens.weight", "model.layers.0"

    def heads(name: str, default: int) -> int:
        at = f"{layer}.self_attn.{name}_proj"
        rows = dim(shapes, f"{at}.weight", 0, dim(shapes, f"{at}.bias", 0, default * head_dim))
        return max(1, rows // head_dim)

    return usual._replace(
        hidden=dim(shapes, tokens, 1, dim(shapes, "model.norm.weight", 0, usual.hidden)),
        layers=count(shapes, "model.layers.", usual.layers),
        heads=heads("q", usual.heads),
        kv_heads=heads("k", heads("v", usual.kv_heads)),
        head_dim=head_dim,
        mlp=dim(shapes, f"{layer}.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=dim(shapes, tokens, 0, usual.vocab),
    )


def decoder_keymap() -> Keymap:
    """Map names to and from transformers' classes for causal models; also read names that lack `model.`."""
    return Keymap(prefix_rows((f"model.{name}", at + name) for at in ("model.", "") for name in HEADLESS))


def llm_config(size, architecture: str, model_type: str, eps: float, theta: float) -> dict:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": model_type == "qwen3",
    }


def turning(theta: float, eps: float) -> ReadConfig:
    """Return the reader of the rotary frequencies' base and of the norms' eps. Arguments: by default"""
    return lambda path, shapes, given: {
        "theta": positive(path, given, "rope_theta", theta),
        "eps": positive(path, given, "rms_norm_eps", eps),
    }


def possible_head_dim(shapes: Mapping[str, Shape], usual: int) -> int:
    """Return channels of a head that fit queries and keys: `usual`, else the largest. Shapes do not reveal more."""
    rows = math.gcd(*_rows(shapes).values())
    return rows if rows % usual else usual


def read_head_dim(path: Path, shapes: Shapes, given: dict[str, Any], usual: int) -> dict[str, int]:
    """Return the channels of a head: the config's head_dim, else the queries' channels by its number of heads.

    Return {} if the config has neither and `usual` does not fit the weights; the user must then give `--param`.
    """
    rows, known = _rows(shapes), {field: value for field, value in given.items() if value is not None}
    if not all(rows.values()):
        return {}  # missing tensors are reported later
    if "head_dim" not in known and "num_attention_heads" in known:
        queries = rows["num_attention_heads"]
        known["head_dim"] = queries // divisor(path, known, "num_attention_heads", 1, queries)
    both = math.gcd(*rows.values())
    if "head_dim" not in known and both % usual:
        return {}
    wide = divisor(path, known, "head_dim", usual, both)
    for field, n in rows.items():
        if known.get(field, n // wide) != n // wide:
            raise BadInput(
                f"{path}: {field} is {shown_value(known[field])} and head_dim is {wide}, but {_ROWS[field]} has "
                f"{n} channels: take the config.json of these weights"
            )
    return {"head_dim": wide}


def _rows(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the number of channels of queries and of keys, 0 if missing, by the config's field of their heads."""
    return {field: dim(shapes, f"model.layers.0.self_attn.{name}.weight", 0, 0) for field, name in _ROWS.items()}


LANGUAGE_MODEL_FIELDS = {
    "hidden_act": ("silu",),
    "rope_type": ("default",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "attention_bias": (False,),
}
LLM_PREFIXES = (
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
    "text_encoders.llm.",
    "text_encoder.",
    "",
)
# Tensors of a language model's files that refsd ignores: output head and vision weights.
NOT_TEXT = ("lm_head.*", "vision_tower.*", "model.vision_tower.*", "*multi_modal_projector.*", "output.weight")
