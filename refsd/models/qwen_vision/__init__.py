"""Qwen2.5-VL's vision tower: it turns pictures into tokens of the language model (qwen_vl.py).

A vision transformer on patches of 14 pixels. Most blocks attend within windows of 8 x 8 patches, four of them to
the whole picture; the merger makes one token of 2 x 2 patches.

Bai et al. 2025, "Qwen2.5-VL", section 2.1.1; key names as in transformers, modeling_qwen2_5_vl.py, under `visual.`.
"""

import numpy as np

from refsd.models.language_model import mlp
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

EPS = 1e-6
THETA = 1e4
MERGED = 2  # patches on a side of a token
WHOLE = 7, 15, 23, 31  # blocks that attend to the whole picture


@block
def qwen2_5_vision(m: Module, x, patch=14, window=4, num_heads=16, whole=WHOLE):
    """Encode pictures of one size.

    x:         [N, 3, H, W], normalised as by CLIP; H and W multiples of 2 * patch
    patch:     pixels on a side of a patch
    window:    tokens on a side of a window
    num_heads: heads of the attention; shapes do not reveal it
    whole:     numbers of the blocks without windows
    -> tokens: [N, H * W / (2 * patch)**2, E], row by row

    The blocks see the patches of a token one after the other, and the tokens window by window; taps are in that
    order. Weights hold two frames of a film; a picture is both.

    Raises BadInput if H or W is no multiple.
    """
    rows, columns = grid(x, patch)
    order, sizes = windows(rows, columns, window)
    h = m.linear(
        "patch_embed.proj",
        np.take(patches(x, patch), order, axis=1).reshape(len(x), rows * columns * MERGED**2, -1),
    )
    angle = m.rope_angles(
        places(rows, columns)[order].reshape(1, -1, 2), (h.shape[2] // num_heads // 2,) * 2, THETA
    )
    for i in range(m.count("blocks")):
        h = vision_block(m["blocks"][i], h, angle, runs_of(i, whole, sizes), num_heads)
    return row_by_row(merger(m["merger"], h), order)


def grid(x, patch):
    """Return the rows and columns of a picture's tokens. x [N, 3, H, W]

    Raises BadInput for sides that are no multiples of a token's.
    """
    H, W = x.shape[2:]
    side = MERGED * patch
    if H % side or W % side:
        raise BadInput(f"a picture of {H} x {W} pixels, expected multiples of {side}: resize it")
    return H // side, W // side


def windows(rows, columns, window):
    """Return the order of the tokens window by window, and the number of patches in each window.

    Windows at the right and at the bottom may be smaller.
    """
    numbers = np.arange(rows * columns).reshape(rows, columns)
    there = [
        numbers[i : i + window, j : j + window].ravel()
        for i in range(0, rows, window)
        for j in range(0, columns, window)
    ]
    return np.concatenate(there), [len(one) * MERGED**2 for one in there]


def runs_of(i, whole, sizes):
    """Return the lengths of the runs of patches within which block i attends."""
    return [sum(sizes)] if i in whole else sizes


def row_by_row(tokens, order):
    """Undo the order of the windows. [N, tokens, E] -> the same"""
    return np.take(tokens, np.argsort(order), axis=1)


def patches(x, patch):
    """Cut pictures into the patches of each token. x [N, 3, H, W] -> [N, tokens, 4, 3 * 2 * patch * patch]"""
    N, C, H, W = x.shape
    side = MERGED * patch
    cut = x.reshape(N, C, H // side, MERGED, patch, W // side, MERGED, patch).transpose(0, 2, 5, 3, 6, 1, 4, 7)
    both = np.repeat(cut[..., None, :, :], 2, axis=-3)
    return both.reshape(N, (H // side) * (W // side), MERGED**2, -1)


def places(rows, columns):
    """Return the row and the column of each token's patches. -> [tokens, 4, 2]"""
    row, column = np.indices((rows * MERGED, columns * MERGED))
    of = np.stack([row, column], axis=-1).reshape(rows, MERGED, columns, MERGED, 2)
    return of.transpose(0, 2, 1, 3, 4).reshape(rows * columns, MERGED**2, 2)


@block
def vision_block(m: Module, h, angle, sizes, num_heads):
    """Pre-norm attention and SwiGLU, both with biases. h [N, L, D] -> [N, L, D]"""
    h = m.add(h, attention(m["attn"], m.rms_norm_apart("norm1.weight", h, EPS), angle, sizes, num_heads))
    return m.add(h, mlp(m["mlp"], m.rms_norm_apart("norm2.weight", h, EPS)))


@block
def attention(m: Module, h, angle, sizes, num_heads):
    """Attend within each run of patches.

    h:     [N, L, D]
    angle: [1, L, D / num_heads / 2], radians: half of the frequencies turn by row, half by column
    sizes: lengths of the runs; their sum is L
    -> y:  [N, L, D]
    """
    N, L, D = h.shape
    q, k, v = m.linear("qkv", h).reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    q, k = m.rope_halves(q, angle), m.rope_halves(k, angle)
    ends = np.cumsum(sizes)
    runs = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    y = np.concatenate([m.attention(q[:, run], k[:, run], v[:, run]) for run in runs], axis=1)
    return m.linear("proj", y.reshape(N, L, D))


@block
def merger(m: Module, h):
    """Make one token of four patches. h [N, L, D] -> [N, L / 4, E]"""
    N, L, _ = h.shape
    h = m.rms_norm_apart("ln_q.weight", h, EPS).reshape(N, L // MERGED**2, -1)
    return m.linear("mlp.2", m.gelu(m.linear("mlp.0", h)))
