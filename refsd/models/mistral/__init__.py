"""Mistral Small 3's language model as a text encoder: it returns the hidden states of every layer.

Jiang et al. 2023, without the sliding window; key names as in transformers, modeling_mistral.py
(MistralForCausalLM). Qwen3's layers with another epsilon and without its norms of queries and keys.
"""

import numpy as np

from refsd.models.language_model import hidden_states
from refsd.module import Module, block

EPS = 1e-5


@block
def mistral(m: Module, input_ids, attention_mask=None, head_dim=128, theta=1e9, eps=EPS):
    """Encode token ids.

    input_ids:      [N, L], integers
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    head_dim:       channels of a head; shapes do not reveal it
    theta:          base of the rotary frequencies
    eps:            of every norm
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm if there is one. FLUX.2 dev uses 10, 20 and 30; some files end there, without a norm.

    Positions count from the start of the row, padding included.
    """
    m = m["model"]
    x = m.embedding("embed_tokens", input_ids)
    angle = m.rope_angles(np.arange(x.shape[1])[None, :, None], (head_dim,), theta)
    return hidden_states(m, x, angle, attention_mask, eps, final_norm="norm" in m)
