"""The encoder of T5 and UMT5: sizes, tensors, names in files."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.language_model.llama_cpp_names import gguf_keymap
from refsd.networks.config import positive, whole
from refsd.networks.dimensions import Shape, Shapes, count, dim
from refsd.networks.keymap import Keymap, prefix_rows, same_names
from refsd.networks.naming import namings
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Layout, Location, Network, counted, fixed
from refsd.networks.recipe import alone


class T5Size(NamedTuple):
    """Dimensions of the encoder; the defaults are T5-XXL's. head_dim is T5's d_kv."""

    hidden: int = 4096
    layers: int = 24
    heads: int = 64
    head_dim: int = 64
    mlp: int = 10240
    vocab: int = 32128
    buckets: int = 32
    table_in_every_layer: bool = False


T5_XXL = T5Size()
UMT5_XXL = T5Size(vocab=256384, table_in_every_layer=True)
_TINY_UMT5 = T5Size(96, 3, 3, 24, 160, vocab=1000, table_in_every_layer=True)


def t5_shapes(size: T5Size) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' T5EncoderModel, UMT5EncoderModel, with gated GELU."""
    D, inner = size.hidden, size.heads * size.head_dim
    shapes: Shapes = {"shared.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"encoder.block.{i}.layer"
        shapes |= {f"{at}.0.SelfAttention.{name}.weight": (inner, D) for name in "qkv"}
        shapes[f"{at}.0.SelfAttention.o.weight"] = (D, inner)
        if i == 0 or size.table_in_every_layer:
            shapes[f"{at}.0.SelfAttention.relative_attention_bias.weight"] = (size.buckets, size.heads)
        shapes[f"{at}.0.layer_norm.weight"] = (D,)
        shapes |= {f"{at}.1.DenseReluDense.{name}.weight": (size.mlp, D) for name in ("wi_0", "wi_1")}
        shapes[f"{at}.1.DenseReluDense.wo.weight"] = (D, size.mlp)
        shapes[f"{at}.1.layer_norm.weight"] = (D,)
    shapes["encoder.final_layer_norm.weight"] = (D,)
    return shapes


def t5_size(shapes: Mapping[str, Shape]) -> T5Size:
    """Infer the size from shapes under transformers' names. Dimensions of missing tensors are T5-XXL's."""
    usual = T5Size()
    block, bias = "encoder.block", "layer.0.SelfAttention.relative_attention_bias.weight"
    attention, table = f"{block}.0.layer.0.SelfAttention", f"{block}.0.{bias}"
    hidden = dim(shapes, "shared.weight", 1, dim(shapes, "encoder.final_layer_norm.weight", 0, usual.hidden))
    layers = count(shapes, "encoder.block.", usual.layers)
    heads = dim(shapes, table, 1, 0)
    inner = dim(shapes, f"{attention}.q.weight", 0, dim(shapes, f"{attention}.o.weight", 1, 0))
    if not heads:
        heads = max(1, inner // usual.head_dim) if inner else usual.heads
    return T5Size(
        hidden=hidden,
        layers=layers,
        heads=heads,
        head_dim=max(1, inner // heads) if inner else usual.head_dim,
        mlp=dim(shapes, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 0, usual.mlp),
        vocab=dim(shapes, "shared.weight", 0, usual.vocab),
        buckets=dim(shapes, table, 0, usual.buckets),
        table_in_every_layer=any(f"{block}.{i}.{bias}" in shapes for i in range(1, layers)),
    )


# (our name, llama.cpp's name).
_GGUF_ENDS = (("shared", "token_embd"), ("encoder.final_layer_norm", "enc.output_norm"))
_GGUF_BLOCK = (
    ("0.SelfAttention.q", "attn_q"),
    ("0.SelfAttention.k", "attn_k"),
    ("0.SelfAttention.v", "attn_v"),
    ("0.SelfAttention.o", "attn_o"),
    ("0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    ("0.layer_norm", "attn_norm"),
    ("1.DenseReluDense.wi_0", "ffn_gate"),
    ("1.DenseReluDense.wi_1", "ffn_up"),
    ("1.DenseReluDense.wo", "ffn_down"),
    ("1.layer_norm", "ffn_norm"),
)


def t5_keymap() -> Keymap:
    """Map names to and from transformers' T5EncoderModel, whose `shared` some files name `encoder.embed_tokens`.

    If a file has both, the first of them is read.
    """
    return Keymap(prefix_rows(("shared", name) for name in ("shared", "encoder.embed_tokens")), rest_same=True)


def t5_gguf_keymap(layers: int = 24) -> Keymap:
    """Map transformers' names to and from llama.cpp's GGUF of a T5 encoder."""
    each = [(f"layer.{a}", b) for a, b in _GGUF_BLOCK]
    return gguf_keymap(_GGUF_ENDS, each, layers, "encoder.block", "enc.blk")


def _t5_config(size) -> dict:
    name = "UMT5" if size.table_in_every_layer else "T5"
    return {
        "architectures": [f"{name}EncoderModel"],
        "model_type": name.lower(),
        "vocab_size": size.vocab,
        "d_model": size.hidden,
        "d_kv": size.head_dim,
        "d_ff": size.mlp,
        "num_layers": size.layers,
        "num_heads": size.heads,
        "relative_attention_num_buckets": size.buckets,
        "relative_attention_max_distance": 128,
        "dense_act_fn": "gelu_new",
        "feed_forward_proj": "gated-gelu",
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-06,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _of_names(names: Collection[str]) -> Keymap:
    """Choose the keymap of a file: if the file has the embedding table under both names, `shared` is read."""
    return same_names(names) if "shared.weight" in names else t5_keymap()


_COMPUTED = {
    "feed_forward_proj": ("gated-gelu",),
    "dense_act_fn": ("gelu_new", "gelu_pytorch_tanh"),
    "is_gated_act": (True,),
}


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    distance = whole(path, given, "relative_attention_max_distance", 128)
    return {"max_distance": distance, "eps": positive(path, given, "layer_norm_epsilon", 1e-6)}


T5 = Network(
    "t5",
    "T5 encoder",
    "text encoder",
    t5_size,
    t5_shapes,
    places=(
        Location(
            Layout("transformers", _of_names, lambda size: t5_keymap()),
            ("text_encoders.t5xxl.transformer.", "text_encoder_2.", "text_encoder_3.", "text_encoder.", ""),
            ("shared.", "encoder.block.", "encoder.embed_tokens."),
        ),
        Location(
            counted("llama.cpp", t5_gguf_keymap, {"enc.blk.": 24}, lambda size: (size.layers,)),
            ("",),
            ("enc.blk.",),
        ),
    ),
    folder=Folder("text_encoder_2", TRANSFORMERS_FILE, fixed("transformers", t5_keymap), _t5_config),
    computed=_COMPUTED,
    config=_read_config,
    nested=("text_config", "rope_parameters"),
    unread=("encoder.embed_tokens.weight", "decoder.*", "lm_head.*"),
    adapters=namings(
        ("original",),
        ("lora_te2_", "lora_te3_"),
        ("text_encoder_2.", "text_encoder_3.", "text_encoders.t5xxl.transformer."),
    ),
    usual=T5_XXL,
    recipes={
        "t5xxl": alone("t5", T5_XXL, T5Size(128, 2, 2, mlp=256, vocab=1000), "t5encoder"),
        "umt5": alone("t5", UMT5_XXL, _TINY_UMT5, "t5encoder"),
    },
)
NETWORKS = (T5,)
