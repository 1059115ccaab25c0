"""CLIP's text encoder: transformer blocks with causal attention.

OpenAI's CLIP-L (SD 1, SDXL, Flux) and OpenCLIP's H (SD 2) and bigG (SDXL). Radford et al. 2021,
section 2.4; Cherti et al. 2022; key names as in transformers, modeling_clip.py.
"""

import numpy as np

from refsd.kernels.attention import causal_mask
from refsd.module import Module, block

ACTIVATIONS = {"quick_gelu": Module.quick_gelu, "gelu": Module.gelu}


@block
def clip_text(
    m: Module, input_ids, num_heads=12, hidden_act="quick_gelu", clip_skip=1, eos=49407, final_norm=True, eps=1e-5
):
    """Encode token ids.

    input_ids:  [N, L], integers
    hidden_act: a key of ACTIVATIONS: OpenAI's CLIP has quick_gelu, OpenCLIP gelu
    clip_skip:  1 for the last layer's output, 2 for the one before it, ...
    eos:        id of the end-of-text token
    final_norm: True to apply the final LayerNorm to `hidden`, whatever clip_skip is; SDXL omits it
    eps:        of every LayerNorm
    -> hidden:      [N, L, D]
       penultimate: [N, L, D], output of the last layer but one
       pooled:      [N, D], last layer's output at the first `eos` (else at token 0), with the final LayerNorm
    """
    m = m["text_model"]
    states = [embeddings(m["embeddings"], input_ids)]
    mask = causal_mask(input_ids.shape[1], np.float64)
    for i in range(m.count("encoder.layers")):
        states.append(layer(m["encoder.layers"][i], states[-1], num_heads, ACTIVATIONS[hidden_act], mask, eps))
    last = m.layer_norm("final_layer_norm", states[-1], eps)
    hidden = states[-clip_skip]
    if final_norm:
        hidden = m.layer_norm("final_layer_norm", hidden, eps) if clip_skip > 1 else last
    return hidden, states[-2], last[np.arange(len(last)), end_of_prompt(input_ids, eos)]


def end_of_prompt(input_ids, eos):
    """Return the index of the first `eos`, 0 if there is none. [N, L] -> [N]"""
    return np.argmax(input_ids == eos, axis=1)


@block
def clip_text_with_projection(
    m: Module, input_ids, num_heads=20, hidden_act="gelu", clip_skip=2, eos=49407, final_norm=False, eps=1e-5
):
    """Encode token ids as SDXL does with OpenCLIP's bigG.

    Arguments as in `clip_text`.

    -> hidden:      [N, L, D], output of the last layer but one, by default
       penultimate: [N, L, D], output of the last layer but one, whatever clip_skip and final_norm are
       pooled:      [N, P], output of the last layer at the first `eos`, with the final LayerNorm and the projection
    """
    hidden, penultimate, pooled = clip_text(m, input_ids, num_heads, hidden_act, clip_skip, eos, final_norm, eps)
    return hidden, penultimate, m.text_projection("text_projection", pooled)


@block
def embeddings(m: Module, input_ids):
    """Add token and position embeddings. [N, L] -> [N, L, D]"""
    positions = np.arange(input_ids.shape[1])
    return m.add(m.embedding("token_embedding", input_ids), m.embedding("position_embedding", positions))


@block
def layer(m: Module, x, num_heads, activation, mask=None, eps=1e-5):
    """Pre-norm attention and MLP. mask: causal for a text, None for a picture. [N, L, D] -> [N, L, D]"""
    x = m.add(x, self_attention(m["self_attn"], m.layer_norm("layer_norm1", x, eps), num_heads, mask))
    return m.add(x, mlp(m["mlp"], m.layer_norm("layer_norm2", x, eps), activation))


@block
def self_attention(m: Module, x, num_heads, mask):
    """With the causal mask, token l attends to tokens 0..l. [N, L, D] -> [N, L, D]"""
    N, L, D = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, num_heads, -1) for name in ("q_proj", "k_proj", "v_proj"))
    y = m.attention(q, k, v, mask=mask)
    return m.linear("out_proj", y.reshape(N, L, D))


@block
def mlp(m: Module, x, activation):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("fc2", activation(m, m.linear("fc1", x)))
