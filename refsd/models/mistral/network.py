"""Mistral, which encodes prompts of FLUX.2 dev (Small 3) and Ernie-Image (Ministral 3): sizes, names, config."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.models.language_model.config import LANGUAGE_MODEL_FIELDS, llm_config, possible_head_dim, read_head_dim
from refsd.models.language_model.llama_cpp_names import GGUF_ENDS, GGUF_LAYER, HEADLESS, gguf_keymap
from refsd.models.language_model.network import LLM_PREFIXES, NOT_TEXT, decoder_shapes, decoder_size
from refsd.networks.config import positive, shown_value, whole
from refsd.networks.dimensions import Shape, Shapes
from refsd.networks.keymap import Keymap, Rule, prefix_rows
from refsd.networks.naming import ENCODER_LAYOUTS, namings
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Location, Network, counted, fixed
from refsd.networks.recipe import alone
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor


class MistralSize(NamedTuple):
    """Dimensions of the model; the defaults are Mistral Small 3's (24B).

    norm: False if there is no final norm, as in ComfyUI's files, which end at layer 30
    """

    hidden: int = 5120
    layers: int = 40
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 32768
    vocab: int = 131072
    norm: bool = True


MINISTRAL_3B = MistralSize(hidden=3072, layers=26, mlp=9216)
# Mistral Small's, and Ministral 3's of all sizes: base of the rotary frequencies, and what YaRN makes of them.
_SMALL: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e9}
_MINISTRAL: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def is_ministral(size: MistralSize) -> bool:
    """True for Ministral 3 3B, which no other Mistral is as deep as: what a file without config.json is."""
    return size.layers == MINISTRAL_3B.layers


def mistral_shapes(size: MistralSize) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' MistralForCausalLM, without its output head."""
    return decoder_shapes(size, final_norm=size.norm)


def mistral_size(shapes: Mapping[str, Shape]) -> MistralSize:
    """Infer the size from shapes under transformers' names; head_dim is a guess, which fits them.

    Complete checkpoints contain the final norm.
    """
    usual = MistralSize()
    size = decoder_size(usual, shapes, possible_head_dim(shapes, usual.head_dim))
    return size._replace(norm="model.norm.weight" in shapes or size.layers in (usual.layers, MINISTRAL_3B.layers))


_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")


def mistral_keymap() -> Keymap:
    """Map names to and from transformers' MistralForCausalLM.

    Also reads the language model in Mistral3ForConditionalGeneration, as transformers 5 and as older files name it,
    in Mistral3Model, and MistralModel, whose names lack `model.`. Vision weights are ignored.
    """
    return Keymap(prefix_rows((f"model.{name}", at + name) for at in _PREFIXES for name in HEADLESS))


def mistral_gguf_keymap(layers: int = 40, head_dim: int = 128) -> Keymap:
    """Map names to and from llama.cpp's GGUF of Mistral (arch llama or mistral3), with reordered rows of q and k.

    llama.cpp's rotary embedding rotates channels 2i and 2i + 1 of a head, transformers' i and head_dim/2 + i;
    llama.cpp's converter reorders the rows to match. stable-diffusion.cpp rotates 2i and 2i + 1 whatever the file,
    and so needs the GGUF.
    Source: llama.cpp, conversion/llama.py, LlamaModel.permute.
    """
    turned, layer = neighbours(head_dim), [row for row in GGUF_LAYER if not row[0].endswith(("q_norm", "k_norm"))]
    layer = [(*row, turned) if row[0].endswith(("q_proj", "k_proj")) else row for row in layer]
    return gguf_keymap(GGUF_ENDS, layer, layers, "model.layers", "blk")


def neighbours(head_dim: int) -> Rule:
    """Return the rule by which our channels i and head_dim/2 + i of each head are their 2i and 2i + 1.

    Rows are whole blocks, so packed types are reordered as bytes.
    """

    def reorder(tensor: StoredTensor, pairs: tuple[int, int]) -> StoredTensor:
        if tensor.shape[0] % head_dim:
            raise BadInput(f"{tensor.shape[0]} rows are no whole number of heads of {head_dim}")
        rows = np.arange(tensor.shape[0]).reshape(-1, *pairs).swapaxes(1, 2).ravel()
        data = tensor.data.reshape(tensor.shape[0], -1)[rows]
        return tensor._replace(data=data.reshape(tensor.data.shape))

    half = head_dim // 2
    return Rule(
        lambda shapes: shapes[0],
        lambda parts: reorder(parts[0], (half, 2)),
        lambda tensor, _: [reorder(tensor, (2, half))],
    )


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a head's rotation. A config that names no kind of it is the released models'."""
    usual = _MINISTRAL if is_ministral(mistral_size(shapes)) else _SMALL
    known = given if {"rope_type", "rope_theta"} & given.keys() else {**usual, **given}
    read = {
        "theta": positive(path, known, "rope_theta", usual["rope_theta"]),
        "eps": positive(path, known, "rms_norm_eps", 1e-5),
    }
    stretched = _read_yarn(path, known) if "yarn" in (known.get("rope_type"), known.get("type")) else {}
    return {**read_head_dim(path, shapes, given, 128), **read, **stretched}


def _read_yarn(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return YaRN's params. Source: transformers modeling_rope_utils.py, _compute_yarn_parameters."""
    known = {field: value for field, value in given.items() if value is not None}
    factor = positive(path, given, "factor", 16.0)
    ratio = attention_scale(factor, 1.0)
    if known.get("mscale") and known.get("mscale_all_dim"):
        above, below = (positive(path, known, field, 1.0) for field in ("mscale", "mscale_all_dim"))
        ratio = attention_scale(factor, above) / attention_scale(factor, below)
    truncate, beta = known.get("truncate", True), known.get("llama_4_scaling_beta", 0)
    longest = known.get("max_position_embeddings", 16384)  # as transformers, for a config that lacks the field
    if type(truncate) is not bool:
        raise BadInput(f"{path}: truncate is {shown_value(truncate)}; true or false expected")
    return {
        "factor": factor,
        "trained_length": whole(path, known, "original_max_position_embeddings", longest),
        "beta_fast": positive(path, known, "beta_fast", 32.0),
        "beta_slow": positive(path, known, "beta_slow", 1.0),
        "truncate": truncate,
        "attention_factor": positive(path, known, "attention_factor", ratio),
        "query_beta": positive(path, known, "llama_4_scaling_beta", 0.0) if beta != 0 else 0.0,
    }


def attention_scale(factor: float, mscale: float) -> float:
    """Return YaRN's factor of queries and keys for positions that are stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _config(size: MistralSize) -> dict[str, Any]:
    if not is_ministral(size):
        return llm_config(size, "MistralForCausalLM", "mistral", 1e-05, 1000000000)
    config = llm_config(size, "Ministral3ForCausalLM", "ministral3", 1e-05, 1000000)
    del config["rope_theta"]
    return {**config, "max_position_embeddings": 262144, "rope_parameters": _MINISTRAL}


_TRANSFORMERS = fixed("transformers", mistral_keymap)

_NARROW = MistralSize(64, 31, mlp=192, vocab=1000)

MISTRAL = Network(
    "mistral",
    "Mistral",
    "text encoder",
    mistral_size,
    mistral_shapes,
    places=(
        Location(
            _TRANSFORMERS,
            ("text_encoders.mistral3_24b.transformer.", *LLM_PREFIXES),
            (*(f"{prefix}layers." for prefix in _PREFIXES), "model.embed_tokens."),
        ),
        Location(
            counted("llama.cpp", mistral_gguf_keymap, {"blk.": 40}, lambda size: (size.layers, size.head_dim)),
            ("",),
            ("blk.0.attn_q.",),
        ),
    ),
    folder=Folder(
        "text_encoder",
        TRANSFORMERS_FILE,
        _TRANSFORMERS,
        _config,
    ),
    computed={**LANGUAGE_MODEL_FIELDS, "rope_type": ("default", "yarn"), "type": ("default", "yarn")},
    config=_read_config,
    nested=("text_config", "rope_parameters"),
    unread=NOT_TEXT,
    adapters=namings(ENCODER_LAYOUTS, ("lora_te_", "lora_te1_"), ("text_encoder.",)),
    recipes={
        "mistral-small": alone("mistral", MistralSize(), MistralSize(128, 3, 6, 2, mlp=256, vocab=1000), "llama"),
        # As deep as the released one, which tells it from Mistral Small.
        "ministral-3b": alone(
            "mistral", MINISTRAL_3B, MistralSize(64, MINISTRAL_3B.layers, 2, 1, mlp=96, vocab=1000), "mistral3"
        ),
        # Deep enough for FLUX.2's context; in llama.cpp's layout, the only one that stable-diffusion.cpp reads.
        "mistral-narrow": alone(
            "mistral",
            _NARROW,
            _NARROW,
            "llama",
            keymap=lambda size: mistral_gguf_keymap(size.layers, size.head_dim),
        ),
    },
)
NETWORKS = (MISTRAL,)
