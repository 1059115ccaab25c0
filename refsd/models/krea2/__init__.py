"""The transformer of Krea 2: a small transformer fuses twelve hidden states of Qwen3-VL, then one stack for both.

Key names are diffusers'. Norms hold their weight less 1.
"""

import numpy as np

from refsd.kernels.sigmoid import sigmoid
from refsd.models.flux import pack, unpack
from refsd.models.qwen_image import text_mask
from refsd.module import Module, block

AXES_DIM = 32, 48, 48  # rotary channels of a head for the axes picture, row, column
THETA = 1000.0
EPS = 1e-5  # of every norm


@block
def krea2(m: Module, x, timesteps, context, context_mask=None, axes_dim=AXES_DIM, theta=THETA, eps=EPS):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:            [N, C, H, W], H and W even
    timesteps:    [N], 0..1, the share of noise
    context:      [N, J, S, E], hidden states KREA2_LAYERS of Qwen3-VL (qwen_vl.py), without the template's start
    context_mask: [N, J], 0 for tokens that the attention ignores, at any place; None: all are seen
    axes_dim:     rotary channels of a head for each axis; their sum is head_dim
    theta:        base of the rotary frequencies
    eps:          of every norm
    -> v:         [N, C, H, W]

    Words stand at position 0 on all axes, the picture's tokens at (0, row, column).

    Source: diffusers transformer_krea2.py.
    """
    H, W = x.shape[2:]
    J = context.shape[1]
    temb = time_embed(m["time_embed"], timesteps)
    knobs = m.linear("time_mod_proj", m.gelu_tanh(temb)).reshape(len(temb), 6, -1)
    txt = text_in(m["txt_in"], text_fusion(m["text_fusion"], context, context_mask, eps), eps)
    both = np.concatenate([txt, m.linear("img_in", pack(x))], axis=1)
    angle = m.rope_angles(token_ids(J, H, W)[None], axes_dim, theta)
    mask = text_mask(context_mask, H * W // 4)
    for i in range(m.count("transformer_blocks")):
        both = transformer_block(m["transformer_blocks"][i], both, knobs, angle, eps, mask)
    return unpack(final_layer(m["final_layer"], both[:, J:], temb, eps), H, W)


def token_ids(J, H, W):
    """Return the positions (picture, row, column) of J words and of a latent's tokens. -> [J + H/2 * W/2, 3]"""
    row, column = np.indices((H // 2, W // 2)).reshape(2, -1)
    return np.concatenate([np.zeros((J, 3), np.int64), np.stack([0 * row, row, column], axis=-1)])


@block
def text_fusion(m: Module, context, context_mask, eps):
    """Attend over the S hidden states of each token, weigh them, then attend over the tokens.

    context [N, J, S, E] -> [N, J, E]
    """
    N, J, S, E = context.shape
    h = context.reshape(N * J, S, E)
    for i in range(m.count("layerwise_blocks")):
        h = fusion_block(m["layerwise_blocks"][i], h, eps)
    h = np.copy(h.reshape(N, J, S, E).swapaxes(2, 3), order="C")
    h = m.linear("projector", h)[..., 0]
    mask = text_mask(context_mask, 0)
    for i in range(m.count("refiner_blocks")):
        h = fusion_block(m["refiner_blocks"][i], h, eps, mask)
    return h


@block
def fusion_block(m: Module, h, eps, mask=None):
    """Pre-norm attention and SwiGLU, without positions or time. h [N, L, E] -> the same"""
    h = m.add(h, attention(m["attn"], norm(m, "norm1", h, eps), eps, mask=mask))
    return m.add(h, feed_forward(m["ff"], norm(m, "norm2", h, eps)))


@block
def transformer_block(m: Module, h, knobs, angle, eps, mask=None):
    """Modulated attention and SwiGLU; each block adds a table of its own to the time's modulation.

    h:     [N, L, D]
    knobs: [N, 6, D]: scale, shift and gate of the attention, then of the MLP
    angle: [1, L, head_dim / 2], radians
    mask:  broadcastable to [N, heads, L, L]
    -> h:  [N, L, D]
    """
    own = np.moveaxis(m.add(knobs, m.weight("scale_shift_table")), 1, 0)
    scale, shift, gate, mlp_scale, mlp_shift, mlp_gate = (np.copy(one, order="C") for one in own)
    y = m.modulate(norm(m, "norm1", h, eps), shift, scale)
    h = m.gated_add(h, attention(m["attn"], y, eps, angle, mask), gate)
    y = m.modulate(norm(m, "norm2", h, eps), mlp_shift, mlp_scale)
    return m.gated_add(h, feed_forward(m["ff"], y), mlp_gate)


@block
def attention(m: Module, h, eps, angle=None, mask=None):
    """Grouped-query attention whose output a sigmoid gates. h [N, L, D] -> the same"""
    head_dim = m.shape("norm_q.weight")[0]
    q, k, v = (m.linear(name, h).reshape(*h.shape[:2], -1, head_dim) for name in ("to_q", "to_k", "to_v"))
    gate = m.linear("to_gate", h)
    q, k = norm(m, "norm_q", q, eps), norm(m, "norm_k", k, eps)
    if angle is not None:
        q, k = m.rope(q, angle), m.rope(k, angle)
    y = m.attention(q, k, v, mask=mask).reshape(h.shape)
    return m.linear("to_out.0", m.multiply(y, m.apply(sigmoid, gate)))


@block
def feed_forward(m: Module, h):
    """SwiGLU. [N, L, D] -> the same"""
    return m.linear("down", m.multiply(m.silu(m.linear("gate", h)), m.linear("up", h)))


@block
def time_embed(m: Module, timesteps):
    """Sinusoidal channels, cosines first, then an MLP with GELU. [N] -> [N, D]"""
    width = m.shape("linear_1.weight")[1]
    return m.linear(
        "linear_2", m.gelu_tanh(m.linear("linear_1", m.timestep_embedding(timesteps, width, scale=1000.0)))
    )


@block
def text_in(m: Module, h, eps):
    """[N, J, E] -> [N, J, D]"""
    return m.linear("linear_2", m.gelu_tanh(m.linear("linear_1", norm(m, "norm", h, eps))))


@block
def final_layer(m: Module, h, temb, eps):
    """The time embedding itself, plus a table, is scale and shift. h [N, L, D], temb [N, D] -> [N, L, 4C]"""
    own = m.add(temb[:, None], m.weight("scale_shift_table"))
    scale, shift = np.copy(own[:, 0], order="C"), np.copy(own[:, 1], order="C")
    return m.linear("linear", m.modulate(norm(m, "norm", h, eps), shift, scale))


def norm(m: Module, name, x, eps):
    """RMSNorm of the last axis; the file's weight is less by 1."""
    return m.rms_norm(f"{name}.weight", x, eps, plus=1.0)
