"""Mistral Small 3's language model as a text encoder: it returns the hidden states of every layer.

Jiang et al. 2023, without the sliding window; key names as in transformers, modeling_mistral.py
(MistralForCausalLM). Qwen3's layers (qwen3.py) with another epsilon and without its norms of queries and keys.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.models.qwen3 import mlp
from refsd.module import Module, block

EPS = 1e-5


@block
def mistral(m: Module, input_ids, attention_mask=None, head_dim=128, theta=1e9):
    """Encode token ids.

    input_ids:      [N, L], integers
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    head_dim:       channels of a head; shapes do not reveal it
    theta:          base of the rotary frequencies
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm if there is one. FLUX.2 dev uses 10, 20 and 30; some files end there, without a norm.

    Positions count from the start of the row, padding included. Padding at the front has no token to attend to; its
    attention output is zero, as with transformers' sdpa.
    """
    m = m["model"]
    x = m.embedding("embed_tokens", input_ids)
    angle = m.rope_angles(np.arange(x.shape[1])[None, :, None], (head_dim,), theta)
    mask = None
    if attention_mask is not None:
        mask = boolean_mask(np.asarray(attention_mask)[:, None, None] != 0, np.float64)
    hidden_states = [x]
    for i in range(m.count("layers")):
        x = layer(m["layers"][i], x, angle, mask)
        hidden_states.append(x)
    if "norm" in m:
        hidden_states[-1] = m.rms_norm_apart("norm.weight", x, EPS)
    return tuple(hidden_states)


@block
def layer(m: Module, x, angle, mask):
    """Pre-norm attention and MLP. x [N, L, D] -> [N, L, D]"""
    x = m.add(x, self_attention(m["self_attn"], m.rms_norm_apart("input_layernorm.weight", x, EPS), angle, mask))
    return m.add(x, mlp(m["mlp"], m.rms_norm_apart("post_attention_layernorm.weight", x, EPS)))


@block
def self_attention(m: Module, x, angle, mask):
    """Causal grouped-query attention: token l attends to tokens 0..l; several query heads share one key/value head.

    x:     [N, L, D]
    angle: [1, L, head_dim / 2], radians
    mask:  [N, 1, 1, L], added to the scores, or None
    -> y:  [N, L, D]
    """
    N, L, _ = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, -1, 2 * angle.shape[-1]) for name in ("q_proj", "k_proj", "v_proj"))
    y = m.attention(m.rope_halves(q, angle), m.rope_halves(k, angle), v, mask=mask, diagonal=0)
    return m.linear("o_proj", y.reshape(N, L, -1))
