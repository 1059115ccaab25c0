"""Mistral, the language model that encodes FLUX.2 dev's prompts: sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.models.language_model.llama_cpp_names import GGUF_ENDS, GGUF_LAYER, HEADLESS
from refsd.models.language_model.network import (
    LANGUAGE_MODEL_FIELDS,
    LLM_PREFIXES,
    NOT_TEXT,
    decoder_shapes,
    llm_config,
    possible_head_dim,
    read_head_dim,
    turning,
)
from refsd.networks.dimensions import Shape, Shapes, count, dim
from refsd.networks.keymap import SAME, Keymap, Row, Rule
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


def mistral_shapes(size: MistralSize) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' MistralForCausalLM, without its output head."""
    return decoder_shapes(size, final_norm=size.norm)


def mistral_size(shapes: Mapping[str, Shape]) -> MistralSize:
    """Infer the size from shapes under transformers' names; head_dim is a guess, which fits them.

    Complete checkpoints contain the final norm.
    """
    usual = MistralSize()
    head_dim = possible_head_dim(shapes, usual.head_dim)
    layers = count(shapes, "model.layers.", usual.layers)
    attention = "model.layers.0.self_attn"
    return MistralSize(
        hidden=dim(shapes, "model.embed_tokens.weight", 1, usual.hidden),
        layers=layers,
        heads=max(1, dim(shapes, f"{attention}.q_proj.weight", 0, usual.heads * head_dim) // head_dim),
        kv_heads=max(1, dim(shapes, f"{attention}.k_proj.weight", 0, usual.kv_heads * head_dim) // head_dim),
        head_dim=head_dim,
        mlp=dim(shapes, "model.layers.0.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=dim(shapes, "model.embed_tokens.weight", 0, usual.vocab),
        norm="model.norm.weight" in shapes or layers == usual.layers,
    )


_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")


def mistral_keymap() -> Keymap:
    """Map names to and from transformers' MistralForCausalLM.

    Also reads the language model in Mistral3ForConditionalGeneration, as transformers 5 and as older files name it,
    and MistralModel, whose names lack `model.`. Vision weights are ignored.
    """
    return Keymap(Row(f"model.{name}", (at + name,), SAME) for at in _PREFIXES for name in HEADLESS)


def mistral_gguf_keymap(layers: int = 40, head_dim: int = 128) -> Keymap:
    """Map names to and from llama.cpp's GGUF of Mistral (arch llama or mistral3), with reordered rows of q and k.

    llama.cpp's rotary embedding rotates channels 2i and 2i + 1 of a head, transformers' i and head_dim/2 + i;
    llama.cpp's converter reorders the rows to match. stable-diffusion.cpp rotates 2i and 2i + 1 whatever the file,
    and so needs the GGUF.
    Source: llama.cpp, conversion/llama.py, LlamaModel.permute.
    """
    rules = {"attn_q": neighbours(head_dim), "attn_k": neighbours(head_dim)}
    rows = [Row(a, (b,), SAME) for a, b in GGUF_ENDS]
    for i in range(layers):
        for a, b in GGUF_LAYER:
            if b not in ("attn_q_norm", "attn_k_norm"):
                rows.append(Row(f"model.layers.{i}.{a}", (f"blk.{i}.{b}",), rules.get(b, SAME)))
    return Keymap(rows)


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


_TURNING = turning(theta=1e9, eps=1e-5)


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {**read_head_dim(path, shapes, given, 128), **_TURNING(path, shapes, given)}


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
        lambda size: llm_config(size, "MistralForCausalLM", "mistral", 1e-05, 1000000000),
    ),
    computed=LANGUAGE_MODEL_FIELDS,
    config=_read_config,
    nested=("text_config", "rope_parameters"),
    unread=NOT_TEXT,
    adapters=namings(ENCODER_LAYOUTS, ("lora_te_", "lora_te1_"), ("text_encoder.",)),
    recipes={
        "mistral-small": alone("mistral", MistralSize(), MistralSize(128, 3, 6, 2, mlp=256, vocab=1000), "llama"),
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
