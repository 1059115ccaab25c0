"""The transformer of Lumina-Image 2.0, from which Z-Image descends: the same blocks, without padding tokens.

Key names are those of the original's and ComfyUI's files; network.py maps diffusers' names. Several query
heads share one key/value head, a SiLU precedes each block's modulation, the time is not multiplied by 1000, and the
caption stands before the picture. As in Z-Image, the time is 1 - sigma, and the output is minus the velocity, which
the pipelines negate after guidance.
"""

import math

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.patchify import patchify_channels_last, unpatchify_channels_last
from refsd.models.zimage import EPS, cap_embedder, caption_lengths, final_layer, transformer_block, whole_tokens
from refsd.module import Module, block

AXES_DIM = (32, 32, 32)


@block
def lumina2(m: Module, x, timesteps, context, lengths=None, axes_dim=AXES_DIM, theta=10000.0, eps=EPS):
    """Predict clean latent minus noise from a noisy latent.

    x:         [N, C, H, W], H and W multiples of the patch (2)
    timesteps: [N], 1 - sigma: 0 pure noise, 1 clean
    context:   [N, J, E], Gemma 2's hidden states
    lengths:   [N], length of each caption in tokens; tokens after it are ignored; None: all J
    axes_dim:  rotary channels of a head for the axes (caption, row, column)
    eps:       of the RMSNorms, except those of queries and keys
    -> y:      [N, C, H, W], an estimate of clean latent - noise, which is minus the velocity

    Raises BadInput if H or W is no multiple of the patch, or a length is not in 1..J.
    Source: Alpha-VLLM/Lumina-Image-2.0, models/model.py, NextDiT; diffusers transformer_lumina2.py.
    """
    patch = math.isqrt(m.shape("x_embedder.weight")[1] // x.shape[1])
    tokens_high, tokens_wide = whole_tokens(x, patch)
    lengths = caption_lengths(context, lengths)
    J, L = int(lengths.max()), tokens_high * tokens_wide

    c = t_embedder(m["t_embedder"], timesteps)

    txt = cap_embedder(m["cap_embedder"], context[:, :J], eps)
    txt_angle = m.rope_angles(caption_ids(len(x), J), axes_dim, theta)
    for i in range(m.count("context_refiner")):
        txt = transformer_block(m["context_refiner"][i], txt, txt_angle, eps, mask=own_tokens(lengths, J))

    img = m.linear("x_embedder", patchify_channels_last(x, patch))
    img_angle = m.rope_angles(picture_ids(lengths, tokens_high, tokens_wide), axes_dim, theta)
    for i in range(m.count("noise_refiner")):
        img = transformer_block(m["noise_refiner"][i], img, img_angle, eps, c)

    both = np.concatenate([txt, img], axis=1)
    angle = np.concatenate([txt_angle, img_angle], axis=1)
    for i in range(m.count("layers")):
        both = transformer_block(m["layers"][i], both, angle, eps, c, mask=own_tokens(lengths, J, L))

    return unpatchify_channels_last(final_layer(m["final_layer"], both[:, J:], c), patch, tokens_high)


@block
def t_embedder(m: Module, timesteps):
    """Embed 1 - sigma, [N] -> [N, A]; 256 sinusoidal channels, cosines first"""
    width = m.shape("mlp.0.weight")[1]
    return m.linear("mlp.2", m.silu(m.linear("mlp.0", m.timestep_embedding(timesteps, width))))


def caption_ids(N, J):
    """Return positions (0, 0, 0), (1, 0, 0), ... of a caption's tokens. -> [N, J, 3]"""
    ids = np.zeros((N, J, 3))
    ids[:, :, 0] = np.arange(J)
    return ids


def picture_ids(lengths, tokens_high, tokens_wide):
    """Return the picture's positions (length of the caption, row, column). lengths [N] -> [N, L, 3]"""
    L = tokens_high * tokens_wide
    ids = np.empty((len(lengths), L, 3))
    ids[:, :, 0] = lengths[:, None]
    ids[:, :, 1:] = np.indices((tokens_high, tokens_wide)).reshape(2, L).T
    return ids


def own_tokens(lengths, J, L=0):
    """Mask what follows a shorter caption within its J tokens; None if there is nothing.

    lengths: [N], in tokens
    L:       number of picture tokens, which come last and are never masked
    -> [N, 1, 1, J + L] or None
    """
    if (lengths == J).all():
        return None
    place = np.arange(J + L)
    return boolean_mask(((place < lengths[:, None]) | (place >= J))[:, None, None], np.float64)
