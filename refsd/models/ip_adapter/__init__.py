"""IP-Adapter: a picture as a prompt, which the cross-attentions of a UNet read beside the text.

Ye et al. 2023 (IP-Adapter), section 3.2; key names as in tencent-ailab/IP-Adapter, ip_adapter.py and resampler.py.
`image_prompt` makes tokens of the text's width of what CLIP's vision tower answers. Each cross-attention has layers
of its own for their keys and values, `to_k_ip` and `to_v_ip`: the same queries attend to the image too, and the
result is added to the text's.
"""

from typing import NamedTuple

import numpy as np

from refsd.module import Module, block

HEAD_DIM = 64  # channels of a head of the Resampler


class Prompt(NamedTuple):
    """What the cross-attentions of a UNet read.

    text:  [N, J, E], the text encoder's hidden states
    image: [N, T, E], from `image_prompt`; None: there is no IP-Adapter
    scale: factor of what the image adds
    """

    text: np.ndarray
    image: np.ndarray | None = None
    scale: float = 1.0


def image_attention(m: Module, q, prompt: Prompt):
    """Attend to the image's tokens. q [N, L, H, D], the queries that attend to the text too -> the same shape"""
    N, _, H, D = q.shape
    k = m.linear("to_k_ip", prompt.image).reshape(N, -1, H, D)
    v = m.linear("to_v_ip", prompt.image).reshape(N, -1, H, D)
    return m.multiply(m.attention(q, k, v), prompt.scale)


def image_prompt(m: Module, seen):
    """Turn what CLIP's vision tower answers into tokens of the text's width.

    seen: IP-Adapter: [N, D], the embedding; plus and full-face: [N, L, D], the penultimate hidden states with the
          class token
    -> tokens: [N, T, E]
    """
    m = m["image_proj"]
    if "layers" in m:
        return resampler(m, seen)
    return projection(m, seen) if seen.ndim == 2 else mlp(m, seen)


@block
def projection(m: Module, embeds):
    """IP-Adapter's: one embedding makes all tokens. [N, D] -> [N, T, E]"""
    E = m.shape("norm.weight")[0]
    return m.layer_norm("norm", m.linear("proj", embeds).reshape(len(embeds), -1, E))


@block
def mlp(m: Module, hidden):
    """Full-face's: each hidden state makes a token. [N, L, D] -> [N, L, E]"""
    return m.layer_norm("proj.3", m.linear("proj.2", m.gelu(m.linear("proj.0", hidden))))


@block
def resampler(m: Module, hidden):
    """Plus's: learned latents gather what the hidden states hold. [N, L, D] -> [N, T, E]

    Source: Alayrac et al. 2022 (Flamingo), section 3.1.1.
    """
    x = m.linear("proj_in", hidden)
    latents = m.weight("latents").reshape(-1, x.shape[2]).astype(x.dtype)
    latents = np.broadcast_to(latents, (len(x), *latents.shape))
    for i in range(m.count("layers")):
        layer = m["layers"][i]
        latents = m.add(latents, perceiver_attention(layer["0"], x, latents))
        latents = m.add(latents, feed_forward(layer["1"], latents))
    return m.layer_norm("norm_out", m.linear("proj_out", latents))


@block
def perceiver_attention(m: Module, x, latents):
    """Latents attend to x and to themselves. x [N, L, D], latents [N, T, D] -> [N, T, D]"""
    N, T, _ = latents.shape
    x, latents = m.layer_norm("norm1", x), m.layer_norm("norm2", latents)
    q = m.linear("to_q", latents).reshape(N, T, -1, HEAD_DIM)
    both = m.linear("to_kv", np.concatenate([x, latents], axis=1))
    k, v = (part.reshape(N, both.shape[1], -1, HEAD_DIM) for part in np.split(both, 2, axis=2))
    return m.linear("to_out", m.attention(q, k, v).reshape(N, T, -1))


@block
def feed_forward(m: Module, x):
    """[N, T, D] -> the same"""
    return m.linear("3", m.gelu(m.linear("1", m.layer_norm("0", x))))
