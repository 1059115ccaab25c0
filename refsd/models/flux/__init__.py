"""FLUX.1: dev, schnell, and their Fill, Canny, Depth and Kontext variants.

Key names, argument names and order of the streams as in black-forest-labs/flux, model.py and modules/layers.py.
"""

from typing import NamedTuple

import numpy as np

from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = 16, 56, 56  # rotary channels of a head for the axes index (of the reference), row, column
THETA = 10000.0
EPS = 1e-6  # of every norm


class Modulation(NamedTuple):
    """Modulation of one sublayer f of a stream: x + gate * f(norm(x) * (1 + scale) + shift). Each [N, D]."""

    shift: np.ndarray
    scale: np.ndarray
    gate: np.ndarray


@block
def flux(m: Module, x, timesteps, context, y, guidance=None, reference=None, axes_dim=AXES_DIM, skip_layers=()):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:         [N, C, H, W], H and W even; Fill, Canny and Depth take their condition in channels 16 and up
    timesteps: [N], 0..1, the share of noise
    context:   [N, J, E], T5's hidden states
    y:         [N, V], CLIP's pooled text
    guidance:  [N], 3.5 or so; schnell ignores it
    reference: [N, C, h, w], h and w even: the picture that Kontext edits
    axes_dim:  rotary channels of a head for each axis; their sum is head_dim
    skip_layers: indices of blocks to skip, the double ones first (skip-layer guidance of stable-diffusion.cpp)
    -> v:      [N, K, H, W]

    Positions (index, row, column) are 0 for text, (0, row, column) for x, (1, row, column) for the reference.

    Raises BadInput if the weights embed guidance and none is given.
    Source: Black Forest Labs 2024; Labs et al. 2025 (FLUX.1 Kontext), section 3, for the reference.
    """
    H, W = x.shape[2:]
    tokens, ids = pack(x), grid_ids(H, W)
    if reference is not None:
        tokens = np.concatenate([tokens, pack(reference)], axis=1)
        ids = np.concatenate([ids, grid_ids(*reference.shape[2:], index=1)])
    img, txt, vec = m.linear("img_in", tokens), m.linear("txt_in", context), conditioning(m, timesteps, y, guidance)
    angle = angles(m, context.shape[1], ids, axes_dim)
    num_heads = img.shape[2] // sum(axes_dim)

    doubles = m.count("double_blocks")
    for i in range(doubles):
        if i not in skip_layers:
            img, txt = double_stream_block(m["double_blocks"][i], img, txt, vec, angle, num_heads)
    both = np.concatenate([txt, img], axis=1)
    for i in range(m.count("single_blocks")):
        if doubles + i not in skip_layers:
            both = single_stream_block(m["single_blocks"][i], both, vec, angle, num_heads)
    _, img, _ = np.split(both, [txt.shape[1], txt.shape[1] + H * W // 4], axis=1)
    return unpack(final_layer(m["final_layer"], img, vec), H, W)


def pack(x):
    """Turn each 2x2 square into a token with channels (c, row, column). [N, C, H, W] -> [N, H/2 * W/2, 4C]"""
    N, C, H, W = x.shape
    return x.reshape(N, C, H // 2, 2, W // 2, 2).transpose(0, 2, 4, 1, 3, 5).reshape(N, H * W // 4, 4 * C)


def unpack(tokens, H, W):
    """Undo `pack`. [N, H/2 * W/2, 4C] -> [N, C, H, W]"""
    N, _, D = tokens.shape
    return tokens.reshape(N, H // 2, W // 2, D // 4, 2, 2).transpose(0, 3, 1, 4, 2, 5).reshape(N, D // 4, H, W)


def grid_ids(H, W, index=0):
    """Return the positions (index, row, column) of the tokens of a latent of H x W. -> [H/2 * W/2, 3]"""
    row, column = np.indices((H // 2, W // 2)).reshape(2, -1)
    return np.stack([np.full_like(row, index), row, column], axis=-1)


def angles(m: Module, J, ids, axes_dim):
    """Compute the rotary angles of J text tokens at position 0, then of the picture's at ids [L, A].

    -> radians [1, J + L, sum(axes_dim) / 2]
    """
    return m.rope_angles(np.pad(ids, ((J, 0), (0, 0)))[None], axes_dim, THETA)


def conditioning(m: Module, timesteps, y, guidance):
    """Embed the conditioning. timesteps [N], y [N, V], guidance [N] or None -> vec [N, D]"""
    waves = m.shape("time_in.in_layer.weight")[1]
    vec = mlp_embedder(m["time_in"], m.timestep_embedding(1000 * timesteps, waves))
    if "guidance_in" in m:
        if guidance is None:
            raise BadInput("the weights embed a guidance: give one (3.5 is usual), or take schnell's weights")
        vec = m.add(vec, mlp_embedder(m["guidance_in"], m.timestep_embedding(1000 * guidance, waves)))
    return m.add(vec, mlp_embedder(m["vector_in"], y))


@block
def mlp_embedder(m: Module, x):
    """[..., K] -> [..., D]"""
    return m.linear("out_layer", m.silu(m.linear("in_layer", x)))


@block
def final_layer(m: Module, x, vec, eps=EPS):
    """[N, L, D], vec [N, D] -> [N, L, 4K]"""
    shift, scale = np.split(m.linear("adaLN_modulation.1", m.silu(vec)), 2, axis=-1)
    return m.linear("linear", m.modulate(norm(m, x, eps), shift, scale))


@block
def double_stream_block(m: Module, img, txt, vec, angle, num_heads=24):
    """Run a double block: img and txt streams have separate weights and attend jointly.

    img:    [N, L, D]
    txt:    [N, J, D]
    vec:    [N, D], the conditioning
    angle:  [N or 1, J + L, D / num_heads / 2], radians; text first
    -> img: [N, L, D]
       txt: [N, J, D]
    """
    return double_stream(
        m, img, txt, modulation(m["img_mod"], vec, 2), modulation(m["txt_mod"], vec, 2), angle, num_heads
    )


def double_stream(m: Module, img, txt, img_mod, txt_mod, angle, num_heads, mask=None):
    """Run `double_stream_block` with given Modulations of each stream's attention and MLP.

    mask: [N, 1, J + L, J + L], added to the attention's scores
    """
    (img_attn, img_mlp), (txt_attn, txt_mlp) = img_mod, txt_mod
    img_qkv = qkv(m["img_attn"], m.modulate(norm(m, img), img_attn.shift, img_attn.scale), num_heads)
    txt_qkv = qkv(m["txt_attn"], m.modulate(norm(m, txt), txt_attn.shift, txt_attn.scale), num_heads)
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    y = rotary_attention(m, q, k, v, angle, mask)
    txt_y, img_y = np.split(y, [txt.shape[1]], axis=1)

    img = m.gated_add(img, m.linear("img_attn.proj", img_y), img_attn.gate)
    txt = m.gated_add(txt, m.linear("txt_attn.proj", txt_y), txt_attn.gate)
    img = m.gated_add(img, mlp(m["img_mlp"], m.modulate(norm(m, img), img_mlp.shift, img_mlp.scale)), img_mlp.gate)
    txt = m.gated_add(txt, mlp(m["txt_mlp"], m.modulate(norm(m, txt), txt_mlp.shift, txt_mlp.scale)), txt_mlp.gate)
    return img, txt


@block
def single_stream_block(m: Module, x, vec, angle, num_heads=24):
    """Run a single block: attention and MLP in parallel, on text and picture tokens together.

    x:     [N, L, D], text first
    vec:   [N, D]
    angle: [N or 1, L, D / num_heads / 2], radians
    -> x:  [N, L, D]
    """
    (mod,) = modulation(m["modulation"], vec, 1)
    return single_stream(m, x, mod, angle, num_heads)


def single_stream(m: Module, x, mod, angle, num_heads, mask=None):
    """Run `single_stream_block` with a given Modulation.

    mask: [N, 1, L, L], added to the attention's scores
    """
    N, L, D = x.shape
    h = m.linear("linear1", m.modulate(norm(m, x), mod.shift, mod.scale))
    qkv, hidden = np.split(h, [3 * D], axis=-1)
    q, k, v = qkv.reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    q, k = qk_norm(m["norm"], q, k)
    y = rotary_attention(m, q, k, v, angle, mask)
    return m.gated_add(x, m.linear("linear2", np.concatenate([y, m.gelu_tanh(hidden)], axis=-1)), mod.gate)


def modulation(m: Module, vec, times):
    """Compute `times` Modulations from vec [N, D]."""
    out = np.split(m.linear("lin", m.silu(vec)), 3 * times, axis=-1)
    return [Modulation(*out[3 * i : 3 * i + 3]) for i in range(times)]


def norm(m: Module, x, eps=EPS):
    """LayerNorm without weights. [N, L, D] -> the same"""
    return m.layer_norm(None, x, eps)


def qkv(m: Module, x, num_heads, eps=EPS):
    """[N, L, D] -> q, k, v, each [N, L, H, D / H]; q and k normalised"""
    N, L, _ = x.shape
    q, k, v = m.linear("qkv", x).reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    return *qk_norm(m["norm"], q, k, eps), v


def qk_norm(m: Module, q, k, eps=EPS):
    """[N, L, H, D] each -> the same"""
    return m.rms_norm("query_norm.scale", q, eps), m.rms_norm("key_norm.scale", k, eps)


def rotary_attention(m: Module, q, k, v, angle, mask=None):
    """[N, L, H, D] each, angle [N or 1, L, D/2] -> [N, L, H*D]"""
    N, L, _, _ = q.shape
    return m.attention(m.rope(q, angle), m.rope(k, angle), v, mask=mask).reshape(N, L, -1)


@block
def mlp(m: Module, x):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("2", m.gelu_tanh(m.linear("0", x)))
