"""Chroma-Radiance: Chroma on pixels, without an autoencoder; a small field decodes each patch instead.

A field is an MLP from a pixel's value and position to its new value; each picture token computes the weights of its
patch's field. Key names as in lodestone-rock/flow, src/models/chroma/model_dct.py; those of the linear last layer,
which the first releases have, as in ComfyUI, comfy/ldm/chroma_radiance.
"""

import math

import numpy as np

from refsd.models.chroma import streams
from refsd.models.flux import AXES_DIM
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AT_ONCE = 512  # patches whose matrices are in memory at a time: 49152 numbers each, in the released weights


@block
def chroma_radiance(m: Module, x, timesteps, context, context_mask=None, axes_dim=AXES_DIM):
    """Predict the velocity, noise minus picture, of a noisy picture.

        v = (x - x0) / t    if the weights contain a tensor "__x0__", and so predict the picture x0; else v itself

    x:            [N, 3, H, W], pictures are -1..1; H and W multiples of the patch: 16, or 32 with "__32x32__"
    timesteps:    [N], 0..1, the share of noise; not 0 with "__x0__"
    context:      [N, J, E], T5's hidden states
    context_mask: [N, J], nonzero for text tokens that take part in the attention, see `chroma.seen`; None: all do
    axes_dim:     rotary channels of a head for each axis (index, row, column)
    -> v:         [N, 3, H, W]

    With "__32x32__" the picture is halved before its patches become tokens, by dropping every other pixel, and each
    token decodes a patch of twice the side. stable-diffusion.cpp halves bilinearly (`sdcpp/radiance-bilinear`).
    Raises BadInput if H or W is no multiple of the patch, or if a timestep is 0 with "__x0__".
    """
    H, W = x.shape[2:]
    twice = 1 + _marked(m, "__32x32__")
    side = m.shape("img_in_patch.weight")[2]
    P = twice * side
    if H % P or W % P:
        raise BadInput(f"x is {H} x {W} pixels, these weights take multiples of {P}: pad it")
    if _marked(m, "__x0__") and not np.all(timesteps):
        raise BadInput("timesteps hold a 0: these weights predict the picture, which has no velocity there")

    img = m.conv2d("img_in_patch", m.halve(x) if twice == 2 else x, stride=side)
    img = img.reshape(*img.shape[:2], -1).swapaxes(1, 2)
    img, _ = streams(m, img, timesteps, context, patch_ids(H // P, W // P), context_mask, axes_dim)
    out = paint(m, patches(x, P), img, H, W)
    if _marked(m, "__x0__"):
        return m.apply(np.divide, m.apply(np.subtract, x, out), np.asarray(timesteps)[:, None, None, None])
    return out


def _marked(m: Module, name: str) -> bool:
    """True if the weights contain an empty tensor of this name, which marks a way of training."""
    return f"{m.prefix}{name}" in m.weights


def patch_ids(rows, columns):
    """Return the position (index, row, column) of each patch. -> [rows * columns, 3]"""
    return np.pad(np.indices((rows, columns)).reshape(2, -1).T, ((0, 0), (1, 0)))


def patches(x, P):
    """Cut into P x P patches, each with its pixels row by row. [N, C, H, W] -> [N * H/P * W/P, P * P, C]"""
    N, C, H, W = x.shape
    return x.reshape(N, C, H // P, P, W // P, P).transpose(0, 2, 4, 3, 5, 1).reshape(-1, P * P, C)


def picture(pixels, H, W):
    """Undo `patches`. [N * H/P * W/P, P * P, C] -> [N, C, H, W]"""
    P = math.isqrt(pixels.shape[1])
    x = pixels.reshape(-1, H // P, W // P, P, P, pixels.shape[2])
    return x.transpose(0, 5, 1, 3, 2, 4).reshape(-1, pixels.shape[2], H, W)


def paint(m: Module, pixels, img, H, W):
    """Evaluate each token's field at each pixel of its patch.

    pixels: [B, P * P, C], B = N * H/P * W/P
    img:    [N, B / N, D], the tokens
    -> out: [N, C, H, W]
    """
    hidden = img.reshape(-1, img.shape[2])
    h = embed_pixels(m["nerf_image_embedder"], pixels)
    for i in range(m.count("nerf_blocks")):
        h = field_block(m["nerf_blocks"][i], h, hidden)
    if "nerf_final_layer_conv" in m:
        return final_layer_conv(m["nerf_final_layer_conv"], h, H, W)
    return picture(final_layer(m["nerf_final_layer"], h), H, W)


@block
def embed_pixels(m: Module, pixels):
    """Embed each pixel's value and position. [B, P * P, C] -> [B, P * P, K]"""
    B, PP, C = pixels.shape
    F = math.isqrt(m.shape("embedder.0.weight")[1] - C)
    waves = m.store(cosines(math.isqrt(PP), F))
    return m.linear("embedder.0", np.concatenate([pixels, np.broadcast_to(waves, (B, *waves.shape))], axis=2))


def cosines(P, F):
    """Encode each pixel's position in a patch by products of cosines; short waves have smaller weights.

        cos(pi a u) cos(pi b v) / (1 + a b),   a, b = 0 .. F-1

    u, v: column and row, 0 at the first pixel and 1 at the last
    -> [P * P, F * F], b fastest
    """
    wave = np.cos(np.pi * np.outer(np.linspace(0, 1, P), np.arange(F)))
    weight = 1 / (1 + np.outer(np.arange(F), np.arange(F)))
    return (wave[None, :, :, None] * wave[:, None, None, :] * weight).reshape(P * P, F * F)


@block
def field_block(m: Module, x, hidden):
    """Apply a gated MLP to each patch, with matrices computed from the patch's token.

        y = x + (silu(n G) * n V) O,   n = rms_norm(x),   G, V [K, R], O [R, K], with columns of length 1

    x:      [B, P * P, K]
    hidden: [B, D]
    -> y:   [B, P * P, K]

    With the released weights the matrices are 64 times as large as the patches; so compute AT_ONCE at a time.
    """
    parts = [
        _field(m, x[first : first + AT_ONCE], hidden[first : first + AT_ONCE])
        for first in range(0, len(x), AT_ONCE)
    ]
    return np.concatenate(parts)


def _field(m: Module, x, hidden):
    B, _, K = x.shape
    gate, value, out = np.split(m.linear("param_generator", hidden), 3, axis=1)
    n = m.rms_norm("norm.scale", x)
    gate, value = m.silu(_product(m, n, gate.reshape(B, K, -1))), _product(m, n, value.reshape(B, K, -1))
    return m.add(x, _product(m, m.multiply(gate, value), out.reshape(B, -1, K)))


def _product(m: Module, x, matrix):
    """Multiply x [B, L, K] by matrix [B, K, R], with columns scaled to length 1. -> [B, L, R]"""
    B, K, R = matrix.shape
    columns = matrix.swapaxes(1, 2).reshape(-1, K)
    columns = m.l2_norm(columns).reshape(B, R, K)
    return m.apply(np.matmul, x, columns.swapaxes(1, 2))


@block
def final_layer_conv(m: Module, x, H, W):
    """[B, P * P, K] -> [N, C, H, W]"""
    return m.conv2d("conv", picture(m.rms_norm("norm.scale", x), H, W), padding=1)


@block
def final_layer(m: Module, x):
    """[B, P * P, K] -> [B, P * P, C]"""
    return m.linear("linear", m.rms_norm("norm.scale", x))
