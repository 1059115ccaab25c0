"""Anima's text conditioner, `llm_adapter` in its files: T5's tokens attend to Qwen3's hidden states.

Each of T5's token ids has an embedding of the conditioner's own; T5 itself is not run. Blocks of self-attention
among these tokens, cross-attention to Qwen3's, and an MLP give the context of the transformer.

Key names are those of Anima's files, which diffusers' folders share.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.module import Module, block

LENGTH = 512  # tokens of the output, at least
THETA = 10000.0
EPS = 1e-6  # of every norm


@block
def anima_conditioner(m: Module, input_ids, context, attention_mask=None, context_mask=None, length=LENGTH):
    """Turn a prompt's tokens into the context of Anima's transformer.

    input_ids:      [N, L], T5's
    context:        [N, J, E], Qwen3's last hidden states
    attention_mask: [N, L], 0 for padding among T5's tokens, else 1. None: no padding.
    context_mask:   [N, J], the same of Qwen3's
    length:         shorter outputs are padded with zeros to it
    -> context: [N, max(L, length), D]; zeros for padding, which the transformer attends to

    A token without any of Qwen3's to attend to takes nothing from them.

    Source: diffusers condition_embedder_anima.py; ComfyUI comfy/ldm/anima/model.py.
    """
    head_dim = m.shape("blocks.0.self_attn.q_norm.weight")[0]
    angle, context_angle = (angles(m, x.shape[1], head_dim) for x in (input_ids, context))
    mask, seen = _added(attention_mask), _added(context_mask)
    h = m.embedding("embed", input_ids)
    for i in range(m.count("blocks")):
        h = conditioner_block(m["blocks"][i], h, context, mask, seen, angle, context_angle)
    h = m.rms_norm("norm.weight", m.linear("out_proj", h), EPS)
    if attention_mask is not None:
        h = np.where(np.asarray(attention_mask)[:, :, None] != 0, h, np.zeros_like(h))
    return padded(h, length)


def angles(m: Module, tokens, head_dim):
    """Return the rotary angles of places 0, 1, 2 ... [1, tokens, head_dim / 2], radians"""
    return m.rope_angles(np.arange(tokens)[None, :, None], (head_dim,), THETA)


def _added(mask):
    """Return a mask, [N, J], as what is added to the scores of all heads and queries, [N, 1, 1, J], or None."""
    return None if mask is None else boolean_mask(np.asarray(mask)[:, None, None] != 0, np.float64)


def padded(h, length):
    """Append zeros up to `length` tokens. [N, L, D] -> [N, max(L, length), D]"""
    N, L, D = h.shape
    return np.concatenate([h, np.zeros((N, max(0, length - L), D), h.dtype)], axis=1)


@block
def conditioner_block(m: Module, h, context, mask, seen, angle, context_angle):
    """Self-attention, cross-attention, MLP, each h = h + f(norm(h)).

    h:             [N, L, D]
    context:       [N, J, E]
    mask, seen:    of the tokens, of the context: added to the scores, [N, 1, 1, L] and [N, 1, 1, J], or None
    angle:         [1, L, head_dim / 2], radians
    context_angle: [1, J, head_dim / 2]
    -> h:          [N, L, D]
    """
    y = m.rms_norm("norm_self_attn.weight", h, EPS)
    h = m.add(h, attention(m["self_attn"], y, y, mask, angle, angle))
    y = m.rms_norm("norm_cross_attn.weight", h, EPS)
    h = m.add(h, attention(m["cross_attn"], y, context, seen, angle, context_angle))
    return m.add(h, mlp(m["mlp"], m.rms_norm("norm_mlp.weight", h, EPS)))


@block
def attention(m: Module, h, context, mask, angle, context_angle):
    """Attend to the context; queries and keys are normalised per head, then rotated by their own places.

    h:       [N, L, D]
    context: [N, J, E]
    -> y:    [N, L, D]
    """
    head_dim = m.shape("q_norm.weight")[0]
    q, k, v = (
        m.linear(f"{name}_proj", x).reshape(*x.shape[:2], -1, head_dim)
        for name, x in zip("qkv", (h, context, context), strict=True)
    )
    q = m.rope_halves(m.rms_norm("q_norm.weight", q, EPS), angle)
    k = m.rope_halves(m.rms_norm("k_norm.weight", k, EPS), context_angle)
    return m.linear("o_proj", m.attention(q, k, v, mask=mask).reshape(*h.shape[:2], -1))


@block
def mlp(m: Module, h):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("2", m.gelu(m.linear("0", h)))
