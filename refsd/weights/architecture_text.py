"""The tensors of the text encoders T5, UMT5 and Qwen3: every name and shape, as in transformers' files."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes
from refsd.weights.sizes import count, dim


class T5Size(NamedTuple):
    """Of T5-XXL unless given; head_dim is d_kv."""

    hidden: int = 4096
    layers: int = 24
    heads: int = 64
    head_dim: int = 64
    mlp: int = 10240
    vocab: int = 32128
    buckets: int = 32
    table_in_every_layer: bool = False


class Qwen3Size(NamedTuple):
    """Of Qwen3-4B unless given."""

    hidden: int = 2560
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 9728
    vocab: int = 151936


T5_XXL = T5Size()
QWEN3_4B = Qwen3Size()
UMT5_XXL = T5Size(vocab=256384, table_in_every_layer=True)


def t5_shapes(size: T5Size) -> Shapes:
    """transformers' T5EncoderModel or UMT5EncoderModel with gated GELU."""
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


def qwen3_shapes(size: Qwen3Size) -> Shapes:
    """transformers' Qwen3ForCausalLM, without the head that predicts the next token."""
    D, queries, keys = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"model.layers.{i}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, D)
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (keys, D) for name in "kv"}
        shapes[f"{at}.self_attn.o_proj.weight"] = (D, queries)
        shapes |= {f"{at}.self_attn.{name}_norm.weight": (size.head_dim,) for name in "qk"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (size.mlp, D) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (D, size.mlp)
        shapes |= {f"{at}.{name}_layernorm.weight": (D,) for name in ("input", "post_attention")}
    shapes["model.norm.weight"] = (D,)
    return shapes


def t5_size(shapes: Mapping[str, Shape]) -> T5Size:
    """From canonical names. What is missing is T5-XXL's."""
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


def qwen3_size(shapes: Mapping[str, Shape]) -> Qwen3Size:
    """From canonical names. What is missing is Qwen3-4B's."""
    usual = Qwen3Size()
    tokens, layer = "model.embed_tokens.weight", "model.layers.0"
    key_norm = dim(shapes, f"{layer}.self_attn.k_norm.weight", 0, usual.head_dim)
    head_dim = dim(shapes, f"{layer}.self_attn.q_norm.weight", 0, key_norm)
    queries = dim(shapes, f"{layer}.self_attn.q_proj.weight", 0, usual.heads * head_dim)
    values = dim(shapes, f"{layer}.self_attn.v_proj.weight", 0, usual.kv_heads * head_dim)
    keys = dim(shapes, f"{layer}.self_attn.k_proj.weight", 0, values)
    return Qwen3Size(
        hidden=dim(shapes, tokens, 1, dim(shapes, "model.norm.weight", 0, usual.hidden)),
        layers=count(shapes, "model.layers.", usual.layers),
        heads=max(1, queries // head_dim),
        kv_heads=max(1, keys // head_dim),
        head_dim=head_dim,
        mlp=dim(shapes, f"{layer}.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=dim(shapes, tokens, 0, usual.vocab),
    )
