"""What config.json holds of Qwen3, Mistral and Gemma 2: how it is written, read and checked."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refsd.networks.config import divisor, positive, shown_value
from refsd.networks.dimensions import Shape, Shapes, dim
from refsd.networks.network import ReadConfig
from refsd.numerics.errors import BadInput

_ROWS = {"num_attention_heads": "q_proj", "num_key_value_heads": "k_proj"}


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
