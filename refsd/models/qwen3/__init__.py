"""Qwen3 as a text encoder: it returns the hidden states of every layer.

Yang et al. 2025, section 2, the dense models; key names as in transformers, modeling_qwen3.py (Qwen3ForCausalLM).
"""

import numpy as np

from refsd.models.language_model import hidden_states
from refsd.module import Module, block

EPS = 1e-6


@block
def qwen3(m: Module, input_ids, attention_mask=None, theta=1e6, eps=EPS):
    """Encode token ids.

    input_ids:      [N, L], integers
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    theta:          base of the rotary frequencies
    eps:            of every norm
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm. Z-Image uses hidden_states[-2].

    Positions count from the start of the row, padding included.
    """
    m = m["model"]
    x = m.embedding("embed_tokens", input_ids)
    head_dim = m.shape("layers.0.self_attn.q_norm.weight")[0]
    angle = m.rope_angles(np.arange(x.shape[1])[None, :, None], (head_dim,), theta)
    return hidden_states(m, x, angle, attention_mask, eps)
