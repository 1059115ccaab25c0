"""The transformer of Wan 2.1 and of both experts of Wan 2.2 A14B: frames as tokens, text by cross-attention.

Key names are those of Wan's and ComfyUI's files; network.py maps diffusers' names. Not here: image embeddings
of Wan 2.1's image to video (`img_emb`), and times of each token apart, as Wan 2.2 TI2V-5B's first frame needs them.
"""

import numpy as np

from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = (44, 42, 42)  # rotary channels of a head for frame, row and column
EPS = 1e-6


@block
def wan(m: Module, x, timesteps, context, axes_dim=AXES_DIM, theta=10000.0, eps=EPS):
    """Predict the velocity, noise - data, of the latents of a video.

    x:         [N, C, F, H, W], H and W even; a picture has F = 1. Image to video has its mask and first frame in C.
    timesteps: [N], 0..1000
    context:   [N, J, E], UMT5's hidden states, zeros after the prompt's; the attention sees all J
    axes_dim:  rotary channels of a head for the axes (frame, row, column)
    eps:       of every norm
    -> v:      [N, K, F, H, W]

    Raises BadInput if H or W is odd.
    Source: Wan-Video/Wan2.2, wan/modules/model.py, WanModel; diffusers transformer_wan.py.
    """
    N, _, F, H, W = x.shape
    patch = m.shape("patch_embedding.weight")[2:]
    if patch[0] != 1 or H % patch[1] or W % patch[2]:
        raise BadInput(f"x: latents of {H} x {W}: expected multiples of {patch[1]} x {patch[2]}; pad or crop them")
    time = time_embedding(m["time_embedding"], timesteps)
    each = m.linear("time_projection.1", m.silu(time)).reshape(N, 6, -1)
    text = text_embedding(m["text_embedding"], context)

    x = m.conv3d("patch_embedding", x, stride=patch)
    grid = x.shape[2:]
    x = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)
    angle = m.rope_angles(positions(grid)[None], axes_dim, theta)
    for i in range(m.count("blocks")):
        x = transformer_block(m["blocks"][i], x, text, each, angle, eps)

    tokens = head(m["head"], x, time, eps)
    y = tokens.reshape(N, *grid, *patch[1:], -1)  # frame, row, column, then row and column in the patch, channel
    return y.transpose(0, 6, 1, 2, 4, 3, 5).reshape(N, -1, F, H, W)


@block
def transformer_block(m: Module, x, text, each, angle, eps):
    """Self-attention, cross-attention to the text, MLP; the time scales, shifts and gates the first and the last.

    A model without cross_attn_norm has no norm3.

    x:     [N, L, D]
    text:  [N, J, D]
    each:  [N, 6, D], shift, scale and gate of the self-attention, then of the MLP, before the block's own
    angle: [1, L, head_dim / 2], radians
    -> x:  [N, L, D]
    """
    mod = m.add(each, m.weight("modulation"))
    h = m.adaptive_layer_norm(x, mod[:, 0], mod[:, 1], eps)
    x = m.gated_add(x, attention(m["self_attn"], h, h, 2 * angle.shape[-1], eps, angle), mod[:, 2])
    h = m.layer_norm("norm3", x, eps) if "norm3" in m else x
    x = m.add(x, attention(m["cross_attn"], h, text, 2 * angle.shape[-1], eps))
    h = m.adaptive_layer_norm(x, mod[:, 3], mod[:, 4], eps)
    return m.gated_add(x, mlp(m["ffn"], h), mod[:, 5])


@block
def attention(m: Module, x, other, head_dim, eps, angle=None):
    """x attends to `other`; queries and keys are normalised over all heads at once, then rotated if angle is given.

    x [N, L, D], other [N, J, D] -> [N, L, D]
    """
    q = m.rms_norm_apart("norm_q.weight", m.linear("q", x), eps)
    k = m.rms_norm_apart("norm_k.weight", m.linear("k", other), eps)
    q, k, v = (t.reshape(*t.shape[:2], -1, head_dim) for t in (q, k, m.linear("v", other)))
    if angle is not None:
        q, k = m.rope(q, angle), m.rope(k, angle)
    return m.linear("o", m.attention(q, k, v).reshape(x.shape))


@block
def mlp(m: Module, x):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("2", m.gelu_tanh(m.linear("0", x)))


@block
def time_embedding(m: Module, timesteps):
    """Embed 0..1000, [N] -> [N, D]; 256 sinusoidal channels, cosines first"""
    width = m.shape("0.weight")[1]
    return m.linear("2", m.silu(m.linear("0", m.timestep_embedding(timesteps, width))))


@block
def text_embedding(m: Module, context):
    """[N, J, E] -> [N, J, D]"""
    return m.linear("2", m.gelu_tanh(m.linear("0", context)))


@block
def head(m: Module, x, time, eps):
    """The last norm, shifted and scaled by the time, then a linear layer. [N, L, D], time [N, D] -> [N, L, 4K]"""
    mod = m.add(time[:, None], m.weight("modulation"))
    return m.linear("head", m.adaptive_layer_norm(x, mod[:, 0], mod[:, 1], eps))


def positions(grid):
    """Return (frame, row, column) of each token. grid: number of each -> [L, 3]"""
    return np.indices(grid).reshape(3, -1).T
