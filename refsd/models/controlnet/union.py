"""ControlNet Union: what a ControlNet that reads several kinds of pictures has besides.

xinsir6/ControlNetPlus, models/controlnet_union.py; key names as there and in diffusers ("transformer_layes"). Its
attention runs over the items of the batch, not over the two tokens of an item, because torch's MultiheadAttention
takes the first axis for the tokens. In ComfyUI it runs over the tokens.
"""

import numpy as np

from refsd.kernels.pool import avg_pool2d
from refsd.module import Module, block

TASKS, LAYERS = "task_embedding", "transformer_layes"
HEADS = 8
# The kinds of the released files, by number: 6, or 8 in ProMax.
KINDS = "openpose", "depth", "scribble", "canny", "normal", "segment", "tile", "repaint"


@block
def type_embed(m: Module, kind, kinds, N):
    """Embed which of the kinds is given: each kind's 1 or 0 has a sinusoidal embedding. -> [N, A]"""
    given = np.tile(np.arange(kinds) == kind, N).astype(np.float64)
    width = m.shape("linear_1.weight")[1] // kinds
    marks = m.timestep_embedding(given, width).reshape(N, -1)
    return m.linear("linear_2", m.silu(m.linear("linear_1", marks)))


def fused_hint(m: Module, hint, x, kind):
    """Shift the hint's channels by what a small transformer makes of their means and the hint's kind.

    hint: [N, D, H, W], embedded
    x:    [N, D, H, W], the latent after the first convolution
    kind: its number; its learned vector is added to the hint's mean
    -> hint: [N, D, H, W]
    """
    hint_token = m.add(mean(m, hint), m.weight(TASKS)[kind].astype(x.dtype))
    tokens = np.concatenate([hint_token, mean(m, x)], axis=1)
    for i in range(m.count(LAYERS)):
        tokens = transformer_layer(m[LAYERS][i], tokens)
    shift = m.linear("spatial_ch_projs", tokens[:, 0])
    return m.add(hint, shift[:, :, None, None])


def mean(m: Module, x):
    """[N, D, H, W] -> [N, 1, D], the mean of all places"""
    means = m.apply(avg_pool2d, x, kernel_size=x.shape[2:], stride=(1, 1), padding=(0, 0))
    return means.reshape(len(x), 1, -1)


@block
def transformer_layer(m: Module, x):
    """Attention over the batch, then an MLP. x [N, 2, D], the hint's token and the latent's -> the same"""
    x = m.add(x, attention(m["attn"], m.layer_norm("ln_1", x).swapaxes(0, 1)).swapaxes(0, 1))
    return m.add(x, m.linear("mlp.c_proj", m.quick_gelu(m.linear("mlp.c_fc", m.layer_norm("ln_2", x)))))


def attention(m: Module, x):
    """Attend over the second axis. x [B, L, D] -> the same"""
    B, L, D = x.shape
    qkv = m.linear("in_proj", x).reshape(B, L, 3, HEADS, -1)
    return m.linear("out_proj", m.attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]).reshape(B, L, D))
