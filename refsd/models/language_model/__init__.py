"""The layers of a language model, used as a text encoder: Qwen3, Qwen2.5-VL, Qwen3-VL and Mistral.

Pre-norm attention and SwiGLU. Qwen2.5-VL's queries, keys and values have biases; Qwen3 and Qwen3-VL normalise the
queries and keys of each head. Which of these a model has, its weights show.

Key names as in transformers, modeling_qwen3.py and its siblings.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.module import Module, block


def hidden_states(m: Module, x, angle, attention_mask, eps, final_norm=True, added=(), scale=None):
    """Run all layers.

    x:              [N, L, D], the tokens' embeddings
    angle:          [1 or N, L, head_dim / 2], radians
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    final_norm:     False to leave the last layer's output as it is
    added:          [N, L, D] each, added to the outputs of the first layers (DeepStack)
    scale:          [L], factors of the turned queries; None: 1
    -> [N, L, D] each: the embeddings, then the output of each layer, before anything is added to it, the last one's
       after the final norm

    Padding at the front has no token to attend to; its attention output is zero, as with transformers' sdpa.
    """
    mask = None
    if attention_mask is not None:
        mask = boolean_mask(np.asarray(attention_mask)[:, None, None] != 0, np.float64)
    states = [x]
    for i in range(m.count("layers")):
        x = layer(m["layers"][i], x, angle, mask, eps, scale)
        states.append(x)
        x = m.add(x, added[i]) if i < len(added) else x
    if final_norm:
        states[-1] = m.rms_norm_apart("norm.weight", x, eps)
    return tuple(states)


@block
def layer(m: Module, x, angle, mask, eps, scale=None):
    """Pre-norm attention and MLP. x [N, L, D] -> [N, L, D]"""
    h = m.rms_norm_apart("input_layernorm.weight", x, eps)
    x = m.add(x, self_attention(m["self_attn"], h, angle, mask, eps, scale))
    return m.add(x, mlp(m["mlp"], m.rms_norm_apart("post_attention_layernorm.weight", x, eps)))


@block
def self_attention(m: Module, x, angle, mask, eps, scale=None):
    """Causal grouped-query attention: token l attends to tokens 0..l; several query heads share one key/value head.

    x:     [N, L, D]
    angle: [1 or N, L, head_dim / 2], radians
    mask:  [N, 1, 1, L], added to the scores, or None
    scale: [L], factors of the turned queries, or None
    -> y:  [N, L, D]
    """
    N, L, _ = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, -1, 2 * angle.shape[-1]) for name in ("q_proj", "k_proj", "v_proj"))
    if "q_norm" in m:
        q, k = m.rms_norm_apart("q_norm.weight", q, eps), m.rms_norm_apart("k_norm.weight", k, eps)
    q, k = m.rope_halves(q, angle), m.rope_halves(k, angle)
    q = q if scale is None else m.multiply(q, scale[:, None, None])
    y = m.attention(q, k, v, mask=mask, diagonal=0)
    return m.linear("o_proj", y.reshape(N, L, -1))


@block
def mlp(m: Module, x):
    """SwiGLU. [N, L, D] -> [N, L, D]"""
    return m.linear("down_proj", m.multiply(m.silu(m.linear("gate_proj", x)), m.linear("up_proj", x)))
