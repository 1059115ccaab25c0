"""llama.cpp's names of a language model's layers."""

from refsd.networks.keymap import Keymap, block_rows, prefix_rows

GGUF_ENDS = (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"))
GGUF_LAYER = (
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
HEADLESS = ("embed_tokens", "layers", "norm")


def gguf_keymap(ends, each, layers, ours, theirs) -> Keymap:
    return Keymap(prefix_rows(ends) + block_rows(layers, ours, theirs, each))
