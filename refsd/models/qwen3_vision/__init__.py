"""Qwen3-VL's vision tower: it turns pictures into tokens of the language model (qwen_vl), and into features that
the language model adds after its first layers (DeepStack).

A vision transformer on patches of 16 pixels, all of which see each other. Its learned positions are a square grid,
interpolated to the picture's grid; rotary angles by row and column come on top. The merger makes one token of 2 x 2
patches, and so does a merger of its own for each block whose output DeepStack takes.

Bai et al. 2025, "Qwen3-VL", section 2; Meng et al. 2024, "DeepStack"; key names as in transformers,
modeling_qwen3_vl.py, under `visual.`.
"""

import math

import numpy as np

from refsd.models.qwen_vision import MERGED, THETA, attention, grid, patches, places
from refsd.module import Module, block

EPS = 1e-6
DEEPSTACK = 8, 16, 24  # blocks whose outputs DeepStack takes, counted from 0


@block
def qwen3_vision(m: Module, x, patch=16, num_heads=16, deepstack=DEEPSTACK):
    """Encode pictures of one size.

    x:            [N, 3, H, W], -1..1; H and W multiples of 2 * patch
    patch:        pixels on a side of a patch
    num_heads:    heads of the attention; shapes do not reveal it
    deepstack:    numbers of the blocks whose outputs DeepStack takes, one for each merger, in ascending order
    -> tokens:    [N, L, E], L = H * W / (2 * patch)**2, row by row
       deepstack: [N, K, L, E], for the first K layers of the language model

    The blocks see the patches of a token one after the other; taps are in that order. Weights hold two frames of a
    film; a picture is both.

    Raises BadInput if H or W is no multiple.
    """
    rows, columns = grid(x, patch)
    at = places(rows, columns).reshape(-1, 2)
    h = m.linear("patch_embed.proj", patches(x, patch).reshape(len(x), len(at), -1))
    h = m.add(h, positions(m, at, MERGED * rows, MERGED * columns))
    angle = m.rope_angles(at[None], (h.shape[2] // num_heads // 2,) * 2, THETA)
    features = []
    for i in range(m.count("blocks")):
        h = vision_block(m["blocks"][i], h, angle, num_heads)
        if taken(i, deepstack):
            features.append(deepstack_merger(m["deepstack_merger_list"][len(features)], h)[:, None])
    return merger(m["merger"], h), np.concatenate(features, axis=1)


def taken(i, deepstack):
    """Return whether DeepStack takes the output of block i."""
    return i in deepstack


def positions(m: Module, at, high, wide):
    """Interpolate the learned positions between the four nearest: the corners of both grids coincide.

    at:         [L, 2], row and column of each patch
    high, wide: patches of the picture
    -> pos:     [L, D]
    """
    side = math.isqrt(m.shape("pos_embed.weight")[0])
    first, share = zip(*(between(at[:, i], n, side) for i, n in enumerate((high, wide))), strict=True)
    pos = 0.0
    for i in (0, 1):
        for j in (0, 1):
            row, column = np.minimum(first[0] + i, side - 1), np.minimum(first[1] + j, side - 1)
            weight = (share[0] if i else 1 - share[0]) * (share[1] if j else 1 - share[1])
            pos = pos + m.embedding("pos_embed", row * side + column) * weight[:, None]
    return m.store(pos)


def between(place, n, side):
    """Map places 0..n-1 to 0..side-1, ends to ends. -> the whole part of each, and the rest"""
    exact = place * (side - 1) / (n - 1)
    first = np.floor(exact).astype(np.int64)
    return first, exact - first


@block
def vision_block(m: Module, h, angle, num_heads):
    """Pre-norm attention and MLP, all with biases. h [N, L, D] -> [N, L, D]"""
    y = m.layer_norm("norm1", h, EPS)
    h = m.add(h, attention(m["attn"], y, angle, [h.shape[1]], num_heads))
    return m.add(h, mlp(m["mlp"], m.layer_norm("norm2", h, EPS)))


@block
def mlp(m: Module, h):
    """GELU, approximated with tanh. [N, L, D] -> [N, L, D]"""
    return m.linear("linear_fc2", m.gelu_tanh(m.linear("linear_fc1", h)))


@block
def merger(m: Module, h):
    """Normalise each patch, then make one token of four. h [N, L, D] -> [N, L / 4, E]"""
    return merged(m, fours(m.layer_norm("norm", h, EPS)))


@block
def deepstack_merger(m: Module, h):
    """Put four patches together, normalise them as one, then make a token of them. h [N, L, D] -> [N, L / 4, E]"""
    return merged(m, m.layer_norm("norm", fours(h), EPS))


def fours(h):
    """Put the patches of a token side by side. [N, L, D] -> [N, L / 4, 4 D]"""
    return h.reshape(len(h), h.shape[1] // MERGED**2, -1)


def merged(m: Module, h):
    """[N, L / 4, 4 D] -> [N, L / 4, E]"""
    return m.linear("linear_fc2", m.gelu(m.linear("linear_fc1", h)))
