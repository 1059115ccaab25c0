"""The transformer of Z-Image: picture and caption are refined apart, then run through one stack together.

Key names of the single-file checkpoint (fused `attention.qkv`, `x_embedder`, `final_layer`), which GGUF files keep;
the split names of Tongyi-MAI's own folder are in networks/zimage.py. A single file may also hold
`norm_final.weight`, which diffusers drops and nothing here reads.

Time runs backwards here: the model is given 1 - sigma, and its output is minus the flow's velocity. This page does
not negate it, nor do Z-Image and diffusers inside the model: their pipelines do, after guidance
(denoised = x + sigma * output). stable-diffusion.cpp negates inside the model, and puts the caption first.
"""

import math

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.patchify import patchify_channels_last, unpatchify_channels_last
from refsd.kernels.tanh import tanh
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

MULTIPLE = 32  # a stream's length, after learned tokens have filled it up
NORM_EPS = 1e-5  # of every RMSNorm, those of queries and keys too


@block
def zimage(m: Module, x, timesteps, context, lengths=None, axes_dim=(32, 48, 48), theta=256.0):
    """Predict the way from a noisy latent to a clean one.

    x:         [N, C, H, W], H and W multiples of the patch (2)
    timesteps: [N], 1 - sigma: 0 pure noise, 1 clean; times 1000 before it is embedded
    context:   [N, J, E], Qwen3's hidden states
    lengths:   [N], how many tokens of each caption count; None: all J. What stands behind them is not read.
    axes_dim:  channels of a head that turn with the position in (time, row, column)
    -> y:      [N, C, H, W], an estimate of clean latent - noise, which is minus the velocity

    Raises BadInput where H or W is no multiple of the patch, or a length is not in 1..J.
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
    img_angle = m.rope_angles(picture_ids(padded, tokens_high, tokens_wide), axes_dim, theta)
    for i in range(m.count("noise_refiner")):
        img = transformer_block(m["noise_refiner"][i], img, img_angle, c)

    txt = cap_embedder(m["cap_embedder"], context[:, : lengths.max()])
    txt = fill(m, "cap_pad_token", txt, lengths)
    txt_angle = m.rope_angles(caption_ids(padded), axes_dim, theta)
    for i in range(m.count("context_refiner")):
        txt = transformer_block(m["context_refiner"][i], txt, txt_angle, mask=own_tokens(padded))

    both = np.concatenate([img, txt], axis=1)
    angle = np.concatenate([img_angle, txt_angle], axis=1)
    for i in range(m.count("layers")):
        both = transformer_block(m["layers"][i], both, angle, c, mask=own_tokens(padded, img.shape[1]))

    tokens = final_layer(m["final_layer"], both[:, : tokens_high * tokens_wide], c)
    return unpatchify_channels_last(tokens, patch, tokens_high)


@block
def transformer_block(m: Module, x, angle, c=None, mask=None):
    """Attention, then MLP, each between two norms; what time says scales the way in and gates the way out.

        x = x + tanh(gate) * norm2(f(norm1(x) * (1 + scale)))

    x:     [N, L, D]
    angle: [N, L, head / 2], radians
    c:     [N, A], the embedded time; None for the caption's refiners, which have no modulation
    mask:  None, or broadcastable to [N, heads, L, L]
    -> x:  [N, L, D]
    """
    if c is None:
        h = attention(m["attention"], norm(m, "attention_norm1", x), angle, mask)
        x = m.add(x, norm(m, "attention_norm2", h))
        return m.add(x, norm(m, "ffn_norm2", feed_forward(m["feed_forward"], norm(m, "ffn_norm1", x))))

    scale_msa, gate_msa, scale_mlp, gate_mlp = np.split(m.linear("adaLN_modulation.0", c), 4, axis=-1)
    h = attention(m["attention"], scaled(m, norm(m, "attention_norm1", x), scale_msa), angle, mask)
    x = m.gated_add(x, norm(m, "attention_norm2", h), m.apply(tanh, gate_msa))
    h = feed_forward(m["feed_forward"], scaled(m, norm(m, "ffn_norm1", x), scale_mlp))
    return m.gated_add(x, norm(m, "ffn_norm2", h), m.apply(tanh, gate_mlp))


@block
def attention(m: Module, x, angle, mask):
    """Queries and keys normalised per head, then turned. [N, L, D] -> [N, L, D]"""
    N, L, _ = x.shape
    head_dim = m.shape("q_norm.weight")[0]
    q, k, v = (part.reshape(N, L, -1, head_dim) for part in np.split(m.linear("qkv", x), 3, axis=-1))
    q, k = m.rope(norm(m, "q_norm", q), angle), m.rope(norm(m, "k_norm", k), angle)
    return m.linear("out", m.attention(q, k, v, mask=mask).reshape(N, L, -1))


@block
def feed_forward(m: Module, x):
    """SwiGLU: w2(silu(w1 x) * w3 x). [N, L, D] -> [N, L, D]"""
    return m.linear("w2", m.swiglu(np.concatenate([m.linear("w1", x), m.linear("w3", x)], axis=-1)))


@block
def t_embedder(m: Module, timesteps):
    """1 - sigma, [N] -> [N, A]; 256 waves, cosines first"""
    width = m.shape("mlp.0.weight")[1]
    return m.linear("mlp.2", m.silu(m.linear("mlp.0", m.timestep_embedding(timesteps, width, scale=1000.0))))


@block
def cap_embedder(m: Module, context):
    """[N, J, E] -> [N, J, D]"""
    return m.linear("1", norm(m, "0", context))


@block
def final_layer(m: Module, x, c):
    """[N, L, D] -> [N, L, p*p*C]; a scale, no shift"""
    scale = m.linear("adaLN_modulation.1", m.silu(c))
    return m.linear("linear", m.adaptive_layer_norm(x, np.zeros_like(scale), scale))


def norm(m: Module, name, x):
    """RMSNorm. [..., D] -> the same"""
    return m.rms_norm_apart(f"{name}.weight", x, eps=NORM_EPS)


def scaled(m: Module, x, scale):
    """[N, L, D] times 1 + scale [N, D] -> [N, L, D]"""
    return m.modulate(x, np.zeros_like(scale), scale)


def fill(m: Module, name, x, lengths):
    """Put a learned token wherever an item has none of its own, up to a multiple of 32. [N, L, D] -> [N, L', D]

    Items attend to these tokens as to any other.
    """
    N, L, D = x.shape
    pad = m.weight(name).reshape(D).astype(x.dtype)
    room = np.broadcast_to(pad, (N, multiple_of_32(L) - L, D))
    own = np.arange(multiple_of_32(L)) < lengths[:, None]
    return np.where(own[:, :, None], np.concatenate([x, room], axis=1), pad)


def picture_ids(padded, tokens_high, tokens_wide):
    """Positions (time, row, column) of the picture, whose time follows the filled caption's; of filling (0, 0, 0).

    padded: [N], the captions' lengths
    -> ids: [N, L, 3]
    """
    L = tokens_high * tokens_wide
    ids = np.zeros((len(padded), multiple_of_32(L), 3))
    ids[:, :L, 0] = padded[:, None] + 1
    ids[:, :L, 1:] = np.indices((tokens_high, tokens_wide)).reshape(2, L).T
    return ids


def caption_ids(padded):
    """Positions (1, 0, 0), (2, 0, 0), ... of the captions, filling included. [N] -> [N, J, 3]"""
    ids = np.zeros((len(padded), padded.max(), 3))
    ids[:, :, 0] = np.arange(1, padded.max() + 1)
    return ids


def own_tokens(padded, pictures=0):
    """A mask that hides the room a shorter caption leaves in its batch; None where there is none.

    padded:   [N], the captions' filled lengths
    pictures: tokens of the picture, which stand before the caption's and are all seen
    -> [N, 1, 1, pictures + longest] or None
    """
    if (padded == padded.max()).all():
        return None
    seen = np.arange(pictures + padded.max()) < pictures + padded[:, None]
    return boolean_mask(seen[:, None, None], np.float64)


def multiple_of_32(length):
    """The next multiple, itself if it is one."""
    return -(-length // MULTIPLE) * MULTIPLE


def whole_tokens(x, patch):
    """The picture's height and width in tokens. Raises BadInput where they are not whole."""
    H, W = x.shape[2:]
    if H % patch or W % patch:
        raise BadInput(f"x: a latent of {H} x {W}: expected multiples of {patch}; pad or crop it")
    return H // patch, W // patch


def caption_lengths(context, lengths):
    """[N], integers. Raises BadInput for a caption without a token, or longer than what is there."""
    N, J, _ = context.shape
    lengths = np.full(N, J) if lengths is None else np.asarray(lengths)
    if lengths.shape != (N,) or lengths.min() < 1 or lengths.max() > J:
        raise BadInput(f"lengths {lengths.tolist()}: expected {N} of 1 to {J}, the tokens of each caption")
    return lengths
