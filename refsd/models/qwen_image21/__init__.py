"""The transformer of Qwen-Image 2.1: one stack of blocks for words and picture, which share all weights.

The words come first and never see the picture: each sees itself and the words before it, and all are modulated as
at time 0. So their keys and values are the same in every step, and engines compute them once. The picture's tokens
see everything.

Key names are those of ComfyUI's files, which are diffusers' but for the MLP: its gate and value are one matrix.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.tanh import tanh
from refsd.models.qwen_image import timestep_embedder
from refsd.module import Module, block

AXES_DIM = 16, 56, 56  # rotary channels of a head for the axes place in the sequence, row, column
THETA = 10000.0
EPS = 1e-6  # of every norm


class Modulation(NamedTuple):
    """What the time does to a branch of a block.

    scale: [N + 1, D], for the picture of each item, then for all words
    gate:  the same
    """

    scale: np.ndarray
    gate: np.ndarray


@block
def qwen_image21(m: Module, x, timesteps, context, context_mask=None, axes_dim=AXES_DIM, eps=EPS):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:            [N, C, H, W], H and W even; a pixel is a token
    timesteps:    [N], 0..1, the share of noise
    context:      [N, J, E], the output of Qwen3-VL's last layer before the norm, without the template's start
    context_mask: [N, J], 0 for words that nobody sees; None: all are seen
    axes_dim:     rotary channels of a head for each axis; their sum is head_dim
    eps:          of every norm
    -> v:         [N, C, H, W]

    Source: diffusers transformer_qwenimage21.py.
    """
    N, C, H, W = x.shape
    J = context.shape[1]
    tokens = np.copy(x.reshape(N, C, H * W).swapaxes(1, 2), order="C")
    both = np.concatenate([txt_in(m["txt_in"], context, eps), m.linear("img_in", tokens)], axis=1)
    vec = time_text_embed(m["time_text_embed"], np.append(timesteps, 0.0))
    attn, mlp = modulations(m, vec)
    angle = m.rope_angles(token_ids(J, H, W)[None], axes_dim, THETA)
    for i in range(m.count("transformer_blocks")):
        both = transformer_block(m["transformer_blocks"][i], both, attn, mlp, angle, context_mask, J, eps)
    y = m.linear("proj_out", norm_out(m["norm_out"], both[:, J:], vec, eps))
    return np.copy(y.swapaxes(1, 2), order="C").reshape(x.shape)


def token_ids(J, H, W):
    """Return the positions of J words, (j, j, j), and of the picture's tokens, (J, row, column).

    Rows and columns count from the centre; of three rows the positions are -2, -1, 0. -> [J + H W, 3]
    """
    row, column = np.indices((H, W)).reshape(2, -1)
    picture = np.stack([np.full_like(row, J), row - (H - H // 2), column - (W - W // 2)], axis=-1)
    return np.concatenate([np.repeat(np.arange(J)[:, None], 3, axis=1), picture])


@block
def time_text_embed(m: Module, timesteps):
    """[N] -> [N, D]"""
    return timestep_embedder(m["timestep_embedder"], timesteps)


def modulations(m: Module, vec):
    """Return the Modulations of attention and MLP, the same in all blocks. vec [N + 1, D]"""
    knobs = np.split(m.linear("modulation.1", m.silu(vec)), 4, axis=-1)
    return Modulation(*knobs[:2]), Modulation(*knobs[2:])


@block
def txt_in(m: Module, context, eps):
    """RMSNorm, whose weight is less by 1 in the file, then an MLP with GELU. [N, J, E] -> [N, J, D]"""
    h = m.rms_norm("text_norm.weight", context, eps, plus=1.0)
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", h)))


@block
def transformer_block(m: Module, h, attn: Modulation, mlp: Modulation, angle, context_mask, J, eps):
    """Attention and SwiGLU; the time scales their inputs and, through tanh, their outputs.

        h = h + tanh(gate) * f(norm(h) * (1 + scale))

    h:            [N, J + L, D], J words, then the picture
    angle:        [1, J + L, head_dim / 2], radians
    context_mask: [N, J] or None
    -> h:         [N, J + L, D]
    """
    y = attention(m["attn"], scaled(m, h, attn.scale, J, eps), angle, context_mask, J, eps)
    h = gated_add(m, h, y, attn.gate, J)
    y = swiglu(m["img_mlp"], scaled(m, h, mlp.scale, J, eps))
    return gated_add(m, h, y, mlp.gate, J)


@block
def attention(m: Module, h, angle, context_mask, J, eps):
    """Self-attention; queries and keys are normalised per head, then rotated (rope). [N, J + L, D] -> the same"""
    head_dim = m.shape("norm_q.weight")[0]
    q, k, v = (m.linear(name, h).reshape(*h.shape[:2], -1, head_dim) for name in ("to_q", "to_k", "to_v"))
    q = m.rope(m.rms_norm_apart("norm_q.weight", q, eps), angle)
    k = m.rope(m.rms_norm_apart("norm_k.weight", k, eps), angle)
    return m.linear("to_out.0", block_causal(m, q, k, v, context_mask, J).reshape(*h.shape[:2], -1))


def block_causal(m: Module, q, k, v, context_mask, J):
    """Attend: a word to itself and the words before it, the picture to everything. [N, J + L, H, head] -> same"""
    words = m.attention(q[:, :J], k[:, :J], v[:, :J], mask=seen(context_mask, 0), diagonal=0)
    picture = m.attention(q[:, J:], k, v, mask=seen(context_mask, q.shape[1] - J))
    return np.concatenate([words, picture], axis=1)


def seen(context_mask, pictures):
    """Mask words that nobody sees; further `pictures` tokens are seen. -> [N, 1, 1, J + pictures] or None"""
    if context_mask is None:
        return None
    there = np.pad(np.asarray(context_mask) != 0, ((0, 0), (0, pictures)), constant_values=True)
    return boolean_mask(there[:, None, None], np.float64)


@block
def swiglu(m: Module, h):
    """SwiGLU; the gate's rows come first. [N, L, D] -> the same"""
    return m.linear("out", m.swiglu(m.linear("gate_up", h)))


def scaled(m: Module, h, scale, J, eps):
    """LayerNorm without weights, times 1 + scale. h [N, J + L, D], scale [N + 1, D] -> [N, J + L, D]"""
    h = m.layer_norm(None, h, eps)
    parts = zip(np.split(h, [J], axis=1), by_token(scale), strict=True)
    return np.concatenate([m.modulate(part, np.zeros_like(own), own) for part, own in parts], axis=1)


def gated_add(m: Module, h, y, gate, J):
    """h + tanh(gate) * y. h, y [N, J + L, D], gate [N + 1, D] -> [N, J + L, D]"""
    parts = zip(np.split(h, [J], axis=1), np.split(y, [J], axis=1), by_token(m.apply(tanh, gate)), strict=True)
    return np.concatenate([m.gated_add(*part) for part in parts], axis=1)


def by_token(knob):
    """Return the rows of the words, which are at time 0, and of the picture. [N + 1, D] -> two [N, D]"""
    return np.repeat(knob[-1:], len(knob) - 1, axis=0), knob[:-1]


@block
def norm_out(m: Module, h, vec, eps):
    """The last norm; its modulation has a scale, but no shift. h [N, L, D], vec [N + 1, D] -> [N, L, D]"""
    scale = m.linear("linear", m.silu(vec))[:-1]
    return m.adaptive_layer_norm(h, np.zeros_like(scale), scale, eps)
