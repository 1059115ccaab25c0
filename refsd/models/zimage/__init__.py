"""The transformer of Z-Image: refiner blocks for picture and caption separately, then one stack for both.

Key names are those of the single-file checkpoint (fused `attention.qkv`, `x_embedder`, `final_layer`) and of GGUF
files; network.py maps the split names of Tongyi-MAI's folder. A single file may also hold
`norm_final.weight`, which diffusers and refsd ignore.

Time runs backwards here: the timestep is 1 - sigma, and the output is minus the flow's velocity. This module does
not negate it, nor do the models of Z-Image and diffusers; their pipelines do, after guidance
(denoised = x + sigma * output). stable-diffusion.cpp negates inside the model, and puts the caption first.
"""

import math
from typing import NamedTuple

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.patchify import patchify_channels_last, unpatchify_channels_last
from refsd.kernels.tanh import tanh
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

MULTIPLE = 32  # learned padding tokens fill a stream up to a multiple of this length
AXES_DIM = (32, 48, 48)
THETA = 256.0
EPS = 1e-5  # of the RMSNorms; of those of queries and keys in every model


class Streams(NamedTuple):
    """The tokens where the blocks of both begin, for a ControlNet (models/zimage_controlnet).

    img:       [N, L, D], the picture's, embedded; padding included
    img_angle: [N, L, head / 2]
    txt:       [N, J, D], the caption's, refined
    both:      [N, L + J, D], the picture's, refined, then the caption's
    angle:     [N, L + J, head / 2]
    mask:      of both; None: all are seen
    c:         [N, A], the embedded time
    eps:       of the RMSNorms
    """

    img: np.ndarray
    img_angle: np.ndarray
    txt: np.ndarray
    both: np.ndarray
    angle: np.ndarray
    mask: np.ndarray | None
    c: np.ndarray
    eps: float


@block
def zimage(m: Module, x, timesteps, context, lengths=None, axes_dim=AXES_DIM, theta=THETA, eps=EPS, control=None):
    """Predict clean latent minus noise from a noisy latent.

    x:         [N, C, H, W], H and W multiples of the patch (2)
    timesteps: [N], 1 - sigma: 0 pure noise, 1 clean; multiplied by 1000 before the embedding
    context:   [N, J, E], Qwen3's hidden states
    lengths:   [N], length of each caption in tokens; tokens after it are ignored; None: all J
    axes_dim:  rotary channels of a head for the axes (time, row, column)
    eps:       of the RMSNorms, except those of queries and keys
    control:   a ControlNet: (m, Streams) -> what joins a block's output, by the block's number
    -> y:      [N, C, H, W], an estimate of clean latent - noise, which is minus the velocity

    Raises BadInput if H or W is no multiple of the patch, or a length is not in 1..J.
    Source: Tongyi-MAI/Z-Image, zimage/transformer.py, ZImageTransformer2DModel; diffusers transformer_z_image.py.
    """
    C = x.shape[1]
    patch = math.isqrt(m.shape("x_embedder.weight")[1] // C)
    tokens_high, tokens_wide = whole_tokens(x, patch)
    lengths = caption_lengths(context, lengths)
    padded = multiple_of_32(lengths)

    c = t_embedder(m["t_embedder"], timesteps)

    img = m.linear("x_embedder", patchify_channels_last(x, patch))
    img = fill(m, "x_pad_token", img, np.full(len(img), img.shape[1]))
    img_angle, embedded = m.rope_angles(picture_ids(padded, tokens_high, tokens_wide), axes_dim, theta), img
    for i in range(m.count("noise_refiner")):
        img = transformer_block(m["noise_refiner"][i], img, img_angle, eps, c)

    txt = cap_embedder(m["cap_embedder"], context[:, : lengths.max()], eps)
    txt = fill(m, "cap_pad_token", txt, lengths)
    txt_angle = m.rope_angles(caption_ids(padded), axes_dim, theta)
    for i in range(m.count("context_refiner")):
        txt = transformer_block(m["context_refiner"][i], txt, txt_angle, eps, mask=own_tokens(padded))

    both = np.concatenate([img, txt], axis=1)
    angle = np.concatenate([img_angle, txt_angle], axis=1)
    mask = own_tokens(padded, img.shape[1])
    hints = control(m, Streams(embedded, img_angle, txt, both, angle, mask, c, eps)) if control else {}
    for i in range(m.count("layers")):
        both = transformer_block(m["layers"][i], both, angle, eps, c, mask=mask)
        both = m.add(both, hints[i]) if i in hints else both

    tokens = final_layer(m["final_layer"], both[:, : tokens_high * tokens_wide], c)
    return unpatchify_channels_last(tokens, patch, tokens_high)


@block
def transformer_block(m: Module, x, angle, eps, c=None, mask=None):
    """Attention, then MLP, each between two norms; the time embedding scales the inputs and gates the outputs.

        x = x + tanh(gate) * norm2(f(norm1(x) * (1 + scale)))

    x:     [N, L, D]
    angle: [N, L, head / 2], radians
    c:     [N, A], the embedded time; None for the caption's refiners, which have no modulation
    mask:  None, or broadcastable to [N, heads, L, L]
    -> x:  [N, L, D]
    """
    if c is None:
        h = attention(m["attention"], norm(m, "attention_norm1", x, eps), angle, mask)
        x = m.add(x, norm(m, "attention_norm2", h, eps))
        h = feed_forward(m["feed_forward"], norm(m, "ffn_norm1", x, eps))
        return m.add(x, norm(m, "ffn_norm2", h, eps))

    scale_msa, gate_msa, scale_mlp, gate_mlp = np.split(modulation(m, c), 4, axis=-1)
    h = attention(m["attention"], scaled(m, norm(m, "attention_norm1", x, eps), scale_msa), angle, mask)
    x = m.gated_add(x, norm(m, "attention_norm2", h, eps), m.apply(tanh, gate_msa))
    h = feed_forward(m["feed_forward"], scaled(m, norm(m, "ffn_norm1", x, eps), scale_mlp))
    return m.gated_add(x, norm(m, "ffn_norm2", h, eps), m.apply(tanh, gate_mlp))


def modulation(m: Module, c):
    """Return both scales and gates, [N, A] -> [N, 4D]. In Lumina 2, c passes a SiLU first."""
    if "adaLN_modulation.1" in m:
        return m.linear("adaLN_modulation.1", m.silu(c))
    return m.linear("adaLN_modulation.0", c)


@block
def attention(m: Module, x, angle, mask):
    """Self-attention; heads' queries and keys are normalised, then rotated in pairs of neighbours.

    [N, L, D] -> [N, L, D]. Lumina 2 has fewer heads of keys and values than of queries, which are D channels wide
    in both.
    """
    N, L, D = x.shape
    head_dim = m.shape("q_norm.weight")[0]
    queries, keys_and_values = np.split(m.linear("qkv", x), [D], axis=-1)
    parts = (queries, *np.split(keys_and_values, 2, axis=-1))
    q, k, v = (part.reshape(N, L, -1, head_dim) for part in parts)
    q, k = m.rope(norm(m, "q_norm", q, EPS), angle), m.rope(norm(m, "k_norm", k, EPS), angle)
    return m.linear("out", m.attention(q, k, v, mask=mask).reshape(N, L, -1))


@block
def feed_forward(m: Module, x):
    """SwiGLU: w2(silu(w1 x) * w3 x). [N, L, D] -> [N, L, D]"""
    return m.linear("w2", m.swiglu(np.concatenate([m.linear("w1", x), m.linear("w3", x)], axis=-1)))


@block
def t_embedder(m: Module, timesteps):
    """Embed 1 - sigma, [N] -> [N, A]; 256 sinusoidal channels, cosines first"""
    width = m.shape("mlp.0.weight")[1]
    return m.linear("mlp.2", m.silu(m.linear("mlp.0", m.timestep_embedding(timesteps, width, scale=1000.0))))


@block
def cap_embedder(m: Module, context, eps):
    """[N, J, E] -> [N, J, D]"""
    return m.linear("1", norm(m, "0", context, eps))


@block
def final_layer(m: Module, x, c):
    """[N, L, D] -> [N, L, p*p*C]; a LayerNorm of eps 1e-6, scaled, not shifted"""
    scale = m.linear("adaLN_modulation.1", m.silu(c))
    return m.linear("linear", m.adaptive_layer_norm(x, np.zeros_like(scale), scale))


def norm(m: Module, name, x, eps):
    """RMSNorm. [..., D] -> the same"""
    return m.rms_norm_apart(f"{name}.weight", x, eps)


def scaled(m: Module, x, scale):
    """Multiply x [N, L, D] by 1 + scale [N, D]. -> [N, L, D]"""
    return m.modulate(x, np.zeros_like(scale), scale)


def fill(m: Module, name, x, lengths):
    """Fill each item after its own tokens with a learned token, to a multiple of 32. [N, L, D] -> [N, L', D]

    The attention does not mask these tokens.
    """
    N, L, D = x.shape
    pad = m.weight(name).reshape(D).astype(x.dtype)
    room = np.broadcast_to(pad, (N, multiple_of_32(L) - L, D))
    own = np.arange(multiple_of_32(L)) < lengths[:, None]
    return np.where(own[:, :, None], np.concatenate([x, room], axis=1), pad)


def picture_ids(padded, tokens_high, tokens_wide):
    """Return the picture's positions (time, row, column); its time follows the caption's; padding has (0, 0, 0).

    padded: [N], the captions' lengths, padding included
    -> ids: [N, L, 3]
    """
    L = tokens_high * tokens_wide
    ids = np.zeros((len(padded), multiple_of_32(L), 3))
    ids[:, :L, 0] = padded[:, None] + 1
    ids[:, :L, 1:] = np.indices((tokens_high, tokens_wide)).reshape(2, L).T
    return ids


def caption_ids(padded):
    """Return positions (1, 0, 0), (2, 0, 0), ... of the captions, padding included. [N] -> [N, J, 3]"""
    ids = np.zeros((len(padded), padded.max(), 3))
    ids[:, :, 0] = np.arange(1, padded.max() + 1)
    return ids


def own_tokens(padded, pictures=0):
    """Mask the tokens of shorter captions beyond their padded length; None if all lengths are equal.

    padded:   [N], the captions' lengths, padding included
    pictures: number of picture tokens, which come first and are never masked
    -> [N, 1, 1, pictures + longest] or None
    """
    if (padded == padded.max()).all():
        return None
    seen = np.arange(pictures + padded.max()) < pictures + padded[:, None]
    return boolean_mask(seen[:, None, None], np.float64)


def multiple_of_32(length):
    """Round up to a multiple of 32."""
    return -(-length // MULTIPLE) * MULTIPLE


def whole_tokens(x, patch):
    """Return the picture's height and width in tokens. Raises BadInput if they are no multiples of the patch."""
    H, W = x.shape[2:]
    if H % patch or W % patch:
        raise BadInput(f"x: a latent of {H} x {W}: expected multiples of {patch}; pad or crop it")
    return H // patch, W // patch


def caption_lengths(context, lengths):
    """Return the captions' lengths, [N], integers. Raises BadInput for a length below 1 or above J."""
    N, J, _ = context.shape
    lengths = np.full(N, J) if lengths is None else np.asarray(lengths)
    if lengths.shape != (N,) or lengths.min() < 1 or lengths.max() > J:
        raise BadInput(f"lengths {lengths.tolist()}: expected {N} of 1 to {J}, the tokens of each caption")
    return lengths
