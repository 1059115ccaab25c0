"""The transformer of Ideogram 4: one stack of blocks, words before the picture, both turned as in Qwen3-VL.

The time counts data, not noise, and scales and gates the blocks without shifting them: a gate is a tanh, and a norm
follows each half of a block. Key names are Ideogram's own, which ComfyUI's and GGUF files share.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.tanh import tanh
from refsd.models.qwen_vl import mrope_angles
from refsd.models.vae_flux2 import squares_inside, squares_outside
from refsd.module import Module, block

SECTIONS = 24, 20, 20  # of the time, row and column; only those of row and column count
THETA = 5e6
EPS = 1e-5  # of the blocks' norms
QK_EPS, CONTEXT_EPS, LAST_EPS = 1e-5, 1e-6, 1e-6
NORM = "layers.0.attention.norm_q.weight"
PICTURE_START = 65536  # position of the picture's first token, on each axis
# Hidden states of Qwen3-VL that make up the context.
CONTEXT_LAYERS = 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 36
UNCONDITIONAL = "unconditional_transformer"  # prefix of the second network's weights


@block
def ideogram4(
    m: Module, x, timesteps, context, context_mask=None, sections=SECTIONS, theta=THETA, eps=EPS, squares_first=True
):
    """Predict the velocity, picture minus noise, of a noisy latent.

    x:            [N, C, H, W], the latent of FLUX.2's autoencoder, packed: a pixel is a token
    timesteps:    [N], 0..1, the share of data in x
    context:      [N, J, E], states CONTEXT_LAYERS of Qwen3-VL: those of its first channel, of its second, ...
    context_mask: [N, J], 0 where a token is padding; None: no padding. Without any word the picture is alone: that
                  is the call without a prompt, with the weights UNCONDITIONAL, where there are any; words of zeros
                  are one, too
    sections:     frequencies of a head that turn by time, row and column
    theta:        base of the rotary frequencies
    eps:          of the blocks' norms
    squares_first: False if x has FLUX.2's channels, whose inner ones are the places in a square
    -> v:         [N, C, H, W]

    Source: diffusers transformer_ideogram4.py.
    """
    N, C, H, W = x.shape
    J = context.shape[1]
    there = np.ones((N, J), np.int64) if context_mask is None else np.asarray(context_mask) != 0
    m = network_of(m, there, context)
    x = x if squares_first else squares_outside(x)
    indicator = np.pad(np.zeros((N, J), np.int64), ((0, 0), (0, H * W)), constant_values=1)
    img = m.linear("input_proj", x.reshape(N, C, H * W).transpose(0, 2, 1))
    both = np.concatenate([words(m, context, there), img], axis=1)
    both = m.add(both, m.embedding("embed_image_indicator", indicator))
    knobs = m.silu(m.linear("adaln_proj", t_embedding(m["t_embedding"], timesteps)))
    angle = mrope_angles(m, positions(there, H, W), axes(m.shape(NORM)[0], sections), theta)
    mask = segments(there, H * W)
    for i in range(m.count("layers")):
        both = transformer_block(m["layers"][i], both, knobs, angle, mask, eps)
    y = final_layer(m["final_layer"], both, knobs)[:, J:]
    y = y.transpose(0, 2, 1).reshape(N, C, H, W)
    return y if squares_first else squares_inside(y)


def network_of(m: Module, there, context) -> Module:
    """Return the weights of a call: the second network's where no item has a word, or all are zeros.

    there: [N, J], 0 for padding; context: [N, J, E]; a graph's, which has no values yet, is not zeros
    """
    if UNCONDITIONAL not in m:
        return m
    zeros = isinstance(context, np.ndarray) and not np.count_nonzero(context)
    return m[UNCONDITIONAL] if zeros or not np.any(there) else m


def words(m: Module, context, there):
    """Normalise and project the words; padding is 0. context [N, J, E], there [N, J] -> [N, J, D]"""
    there = there[..., None].astype(context.dtype)
    h = m.rms_norm_apart("llm_cond_norm.weight", m.multiply(context, there), CONTEXT_EPS)
    return m.multiply(m.linear("llm_cond_proj", h), there)


def positions(there, H, W):
    """Return the positions of words, which are counted, and of a latent's pixels. -> [N, J + H * W, 3]

    there: [N, J], 0 for padding, which is at 0
    """
    number = np.where(there, np.cumsum(there, axis=1) - 1, 0)
    row, column = np.indices((H, W)).reshape(2, -1)
    picture = PICTURE_START + np.stack([0 * row, row, column], axis=-1)
    return np.concatenate(
        [np.repeat(number[..., None], 3, axis=2), np.repeat(picture[None], len(there), 0)], axis=1
    )


def axes(head_dim, sections):
    """Return the axis of each frequency: time, row, column in turn, then time alone. -> [head_dim / 2]"""
    axis = np.zeros(head_dim // 2, np.int64)
    for i in (1, 2):
        axis[i : 3 * sections[i] : 3] = i
    return axis


def segments(there, pictures):
    """Let padding attend to padding, and all else to all else. there [N, J] -> [N, 1, J + pictures, the same]"""
    own = np.pad(there != 0, ((0, 0), (0, pictures)), constant_values=True)
    return boolean_mask((own[:, :, None] == own[:, None])[:, None], np.float64)


@block
def t_embedding(m: Module, timesteps):
    """Sinusoidal channels, sines first, the slowest exactly 10000 times slower; then an MLP. [N] -> [N, D]"""
    width = m.shape("mlp_in.weight")[1]
    waves = m.timestep_embedding(timesteps, width, freq_shift=1.0, scale=1e4, sin_first=True)
    return m.linear("mlp_out", m.silu(m.linear("mlp_in", waves)))


@block
def transformer_block(m: Module, h, knobs, angle, mask, eps):
    """Attention, then SwiGLU, each between two norms; the first is scaled, the second gated.

    h:     [N, L, D]
    knobs: [N, A], of the time
    angle: [N, L, head_dim / 2], radians
    mask:  [N, 1, L, L], added to the scores
    -> h:  [N, L, D]
    """
    scale, gate, mlp_scale, mlp_gate = modulation(m, knobs)
    y = attention(m["attention"], scaled(m, "attention_norm1", h, scale, eps), angle, mask)
    h = m.gated_add(h, m.rms_norm_apart("attention_norm2.weight", y, eps), gate)
    y = feed_forward(m["feed_forward"], scaled(m, "ffn_norm1", h, mlp_scale, eps))
    return m.gated_add(h, m.rms_norm_apart("ffn_norm2.weight", y, eps), mlp_gate)


def modulation(m: Module, knobs):
    """Compute scale and gate of the attention, then of the MLP. [N, A] -> four of [N, D]"""
    scale, gate, mlp_scale, mlp_gate = np.split(m.linear("adaln_modulation", knobs), 4, axis=-1)
    return scale, m.apply(tanh, gate), mlp_scale, m.apply(tanh, mlp_gate)


def scaled(m: Module, name, h, scale, eps):
    """Return a norm's output times 1 + scale. h [N, L, D], scale [N, D] -> [N, L, D]"""
    return m.multiply(m.rms_norm_apart(f"{name}.weight", h, eps), m.add(scale, np.ones(1, scale.dtype))[:, None])


@block
def attention(m: Module, h, angle, mask):
    """h [N, L, D] -> the same"""
    heads = *h.shape[:2], -1, m.shape("norm_q.weight")[0]
    q, k, v = (part.reshape(heads) for part in np.split(m.linear("qkv", h), 3, axis=-1))
    q, k = (m.rms_norm_apart(f"norm_{name}.weight", one, QK_EPS) for name, one in (("q", q), ("k", k)))
    y = m.attention(m.rope_halves(q, angle), m.rope_halves(k, angle), v, mask=mask)
    return m.linear("o", y.reshape(h.shape))


@block
def feed_forward(m: Module, h):
    """SwiGLU. [N, L, D] -> the same"""
    return m.linear("w2", m.multiply(m.silu(m.linear("w1", h)), m.linear("w3", h)))


@block
def final_layer(m: Module, h, knobs):
    """Scale by the time, which is activated once more. h [N, L, D], knobs [N, A] -> [N, L, C]"""
    scale = m.linear("adaln_modulation", m.silu(knobs))
    scale = m.add(scale, np.ones(1, scale.dtype))
    return m.linear("linear", m.multiply(m.layer_norm(None, h, LAST_EPS), scale[:, None]))
