"""Gemma 2 as a text encoder: it returns the hidden states of every layer.

Gemma Team 2024, Gemma 2, section 2; key names as in transformers, modeling_gemma2.py. It adds to Qwen3's layers:
norms before and behind attention and MLP, whose stored weights lack 1; embeddings multiplied by sqrt(D); GELU for
SiLU; scores limited by a tanh. Every second layer sees 4096 tokens only; no prompt has more.
"""

import math

import numpy as np

from refsd.kernels.attention import boolean_mask, causal_mask
from refsd.kernels.attention_softcap import attention_softcap
from refsd.kernels.rms_norm import rms_norm
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

EPS = 1e-6
HEAD_DIM = 256
CAP = 50.0  # attn_logit_softcapping
WINDOW = 4096


@block
def gemma2(
    m: Module,
    input_ids,
    attention_mask=None,
    head_dim=HEAD_DIM,
    theta=10000.0,
    eps=EPS,
    scalar=float(HEAD_DIM),
    cap=CAP,
    window=WINDOW,
):
    """Encode token ids.

    input_ids:      [N, L], integers, at most `window` in a row
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    head_dim:       channels of a head; shapes do not reveal it
    theta:          base of the rotary frequencies
    eps:            of every norm
    scalar:         query_pre_attn_scalar: scores are divided by its root
    cap:            the limit of scores
    window:         tokens that every second layer sees
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm. Lumina 2 uses hidden_states[-2].

    Positions count from the start of the row, padding included.
    Raises BadInput for a row of more than `window` tokens.
    """
    m = m["model"]
    L = input_ids.shape[1]
    if window < L:
        raise BadInput(f"input_ids: {L} tokens in a row; refsd computes Gemma 2 within its window of {window}")
    x = m.embedding("embed_tokens", input_ids)
    x = m.multiply(x, np.full(1, math.sqrt(x.shape[-1]), x.dtype))
    angle = m.rope_angles(np.arange(L)[None, :, None], (head_dim,), theta)
    mask = causal_mask(L, np.float64)
    if attention_mask is not None:
        mask = mask + boolean_mask(np.asarray(attention_mask)[:, None, None] != 0, np.float64)
    states = [x]
    for i in range(m.count("layers")):
        x = layer(m["layers"][i], x, angle, mask, scalar**-0.5, cap, eps)
        states.append(x)
    states[-1] = norm(m, "norm", x, eps)
    return tuple(states)


@block
def layer(m: Module, x, angle, mask, scale, cap, eps):
    """Attention, then MLP, each between two norms. x [N, L, D] -> [N, L, D]"""
    h = self_attention(m["self_attn"], norm(m, "input_layernorm", x, eps), angle, mask, scale, cap)
    x = m.add(x, norm(m, "post_attention_layernorm", h, eps))
    h = mlp(m["mlp"], norm(m, "pre_feedforward_layernorm", x, eps))
    return m.add(x, norm(m, "post_feedforward_layernorm", h, eps))


@block
def self_attention(m: Module, x, angle, mask, scale, cap):
    """Grouped-query attention with limited scores.

    x:     [N, L, D]
    angle: [1, L, head_dim / 2], radians
    mask:  broadcastable to [N, heads, L, L], added to the scores
    scale: of the scores; cap: their limit
    -> y:  [N, L, D]
    """
    N, L, _ = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, -1, 2 * angle.shape[-1]) for name in ("q_proj", "k_proj", "v_proj"))
    q, k = m.rope_halves(q, angle), m.rope_halves(k, angle)
    y = m.apply(attention_softcap, q, k, v, scale=scale, cap=cap, mask=mask)
    return m.linear("o_proj", y.reshape(N, L, -1))


@block
def mlp(m: Module, x):
    """down(gelu(gate x) * up x), GELU by tanh. [N, L, D] -> [N, L, D]"""
    return m.linear("down_proj", m.multiply(m.gelu_tanh(m.linear("gate_proj", x)), m.linear("up_proj", x)))


def norm(m: Module, name, x, eps):
    """RMSNorm by 1 + the stored weight. [..., D] -> the same"""
    weight = 1 + m.weight(f"{name}.weight")
    return m.apply(rms_norm, x.reshape(-1, x.shape[-1]), weight, eps=eps).reshape(x.shape)
