"""The tensors of the text encoders T5, UMT5 and Qwen3: every name and shape, as in transformers' files."""

from typing import NamedTuple

from refsd.weights.architecture import Shapes


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
