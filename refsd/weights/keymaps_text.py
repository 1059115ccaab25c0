"""Where other layouts keep the tensors of T5, UMT5 and Qwen3: tables as in keymaps.py."""

from refsd.weights.keymaps import SAME, Keymap, Row

# ours, llama.cpp's
T5_GGUF_ENDS = (("shared", "token_embd"), ("encoder.final_layer_norm", "enc.output_norm"))
T5_GGUF_BLOCK = (
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
QWEN3_GGUF_ENDS = (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"))
QWEN3_GGUF_LAYER = (
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
)
QWEN3_HEADLESS = ("embed_tokens", "layers", "norm")


def _gguf(ends, each, layers, ours, theirs) -> Keymap:
    rows = [Row(a, (b,), SAME) for a, b in ends]
    rows += [Row(f"{ours}.{i}.{a}", (f"{theirs}.{i}.{b}",), SAME) for i in range(layers) for a, b in each]
    return Keymap(rows)


def t5() -> Keymap:
    """transformers' T5EncoderModel. Some files call `shared` `encoder.embed_tokens`; of both the first is read."""
    return Keymap([Row("shared", (name,), SAME) for name in ("shared", "encoder.embed_tokens")], rest_same=True)


def t5_gguf(layers: int = 24) -> Keymap:
    """llama.cpp's GGUF of a T5 encoder."""
    each = [(f"layer.{a}", b) for a, b in T5_GGUF_BLOCK]
    return _gguf(T5_GGUF_ENDS, each, layers, "encoder.block", "enc.blk")


def qwen3() -> Keymap:
    """transformers' Qwen3ForCausalLM, and Qwen3Model, which writes no `model.`."""
    rows = [Row(f"model.{name}", (f"model.{name}",), SAME) for name in QWEN3_HEADLESS]
    return Keymap(rows + [Row(f"model.{name}", (name,), SAME) for name in QWEN3_HEADLESS])


def qwen3_gguf(layers: int = 36) -> Keymap:
    """llama.cpp's GGUF of Qwen3."""
    return _gguf(QWEN3_GGUF_ENDS, QWEN3_GGUF_LAYER, layers, "model.layers", "blk")
