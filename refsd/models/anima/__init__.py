"""The transformer of Anima, which is NVIDIA's Cosmos-Predict2 of one frame.

Blocks of self-attention, cross-attention to the text, and an MLP. Each of the three has shift, scale and gate of
its own: a product of two narrow matrices for the block (adaLN-LoRA), plus what the time gives to all blocks alike.
The input has one channel more than the latent, a mask of padding, which is 0 for a picture that fills its size.

Key names are NVIDIA's, which ComfyUI's files share.
"""

import numpy as np

from refsd.models.flux import pack
from refsd.module import Module, block

ROPE_SCALE = 1.0, 4.0, 4.0  # by how much longer the axes frame, row, column are than the ones trained on at first
THETA = 10000.0
EPS = 1e-6  # of every norm
PATCH = 2  # pixels of the latent on a side of a token


@block
def anima(m: Module, x, timesteps, context, rope_scale=ROPE_SCALE, eps=EPS, qk_eps=EPS):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:          [N, C, H, W], H and W even
    timesteps:  [N], 0..1, the share of noise
    context:    [N, J, E], of the text conditioner; all tokens are seen
    rope_scale: of the axes frame, row, column
    eps:        of every norm but those of queries and keys
    qk_eps:     of these; diffusers 0.42.1 has 1e-5 for it
    -> v:       [N, C, H, W]

    Source: diffusers transformer_cosmos.py; nvidia-cosmos/cosmos-predict2, text2image_dit.py.
    """
    H, W = x.shape[2:]
    h = m.linear("x_embedder.proj.1", pack(with_padding_mask(x)))
    waves = m.timestep_embedding(timesteps, h.shape[2])
    temb = t_embedder(m["t_embedder.1"], waves)
    vec = m.rms_norm_apart("t_embedding_norm.weight", waves, eps)
    angle = rope_angles(m, H // PATCH, W // PATCH, m.shape("blocks.0.self_attn.q_norm.weight")[0], rope_scale)
    for i in range(m.count("blocks")):
        h = transformer_block(m["blocks"][i], h, context, vec, temb, angle, eps, qk_eps)
    return unpack(final_layer(m["final_layer"], h, vec, temb, eps), H, W)


def with_padding_mask(x):
    """Append the channel of the padding mask: 0, the picture fills its size. [N, C, H, W] -> [N, C + 1, H, W]"""
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1)


def unpack(tokens, H, W):
    """Return the latent of tokens, whose channels are (row, column, channel). [N, L, 4 C] -> [N, C, H, W]"""
    squares = tokens.reshape(len(tokens), H // PATCH, W // PATCH, PATCH, PATCH, -1)
    return np.copy(squares.transpose(0, 5, 1, 3, 2, 4), order="C").reshape(len(tokens), -1, H, W)


def rope_angles(m: Module, rows, columns, head_dim, rope_scale):
    """Return the rotary angles of a picture's tokens; an axis that is s times as long turns more slowly (NTK).

        theta of an axis of d channels = THETA * s ** (d / (d - 2))

    -> angle: [1, rows * columns, head_dim / 2], radians, for the axes frame, row, column
    """
    side = head_dim // 6 * 2
    dims = head_dim - 2 * side, side, side
    ids = np.indices((1, rows, columns)).reshape(3, -1)
    axes = zip(ids, dims, rope_scale, strict=True)
    angles = [m.rope_angles(at[None, :, None], (d,), THETA * ntk_factor(s, d)) for at, d, s in axes]
    return np.concatenate(angles, axis=-1)


def ntk_factor(scale, dim):
    return scale ** (dim / (dim - 2))


@block
def t_embedder(m: Module, waves):
    """[N, D] -> [N, 3 D], shift, scale and gate for all blocks"""
    return m.linear("linear_2", m.silu(m.linear("linear_1", waves)))


@block
def transformer_block(m: Module, h, context, vec, temb, angle, eps, qk_eps):
    """Self-attention, cross-attention, MLP, each h = h + gate * f(norm(h) * (1 + scale) + shift).

    h:       [N, L, D]
    context: [N, J, E]
    vec:     [N, D]
    temb:    [N, 3 D]
    angle:   [1, L, head_dim / 2], radians
    -> h:    [N, L, D]
    """
    shift, scale, gate = modulation(m["adaln_modulation_self_attn"], vec, temb, 3)
    y = m.adaptive_layer_norm(h, shift, scale, eps)
    h = m.gated_add(h, attention(m["self_attn"], y, y, angle, qk_eps), gate)
    shift, scale, gate = modulation(m["adaln_modulation_cross_attn"], vec, temb, 3)
    y = m.adaptive_layer_norm(h, shift, scale, eps)
    h = m.gated_add(h, attention(m["cross_attn"], y, context, None, qk_eps), gate)
    shift, scale, gate = modulation(m["adaln_modulation_mlp"], vec, temb, 3)
    return m.gated_add(h, mlp(m["mlp"], m.adaptive_layer_norm(h, shift, scale, eps)), gate)


def modulation(m: Module, vec, temb, parts):
    """Return the first `parts` of shift, scale and gate. vec [N, D], temb [N, 3 D] -> [N, D] each"""
    low_rank = m.linear("2", m.linear("1", m.silu(vec)))
    return np.split(m.add(low_rank, temb[:, : low_rank.shape[1]]), parts, axis=-1)


@block
def attention(m: Module, h, context, angle, eps):
    """Attend to the context; queries and keys are normalised per head, and rotated (rope) if angle is given.

    h:       [N, L, D]
    context: [N, J, E]
    angle:   [1, L, head_dim / 2], radians, or None
    -> y:    [N, L, D]
    """
    head_dim = m.shape("q_norm.weight")[0]
    q, k, v = (
        m.linear(f"{name}_proj", x).reshape(*x.shape[:2], -1, head_dim)
        for name, x in zip("qkv", (h, context, context), strict=True)
    )
    q, k = m.rms_norm_apart("q_norm.weight", q, eps), m.rms_norm_apart("k_norm.weight", k, eps)
    if angle is not None:
        q, k = m.rope_halves(q, angle), m.rope_halves(k, angle)
    return m.linear("output_proj", m.attention(q, k, v).reshape(h.shape))


@block
def mlp(m: Module, h):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("layer2", m.gelu(m.linear("layer1", h)))


@block
def final_layer(m: Module, h, vec, temb, eps):
    """[N, L, D] -> [N, L, 4 C]"""
    shift, scale = modulation(m["adaln_modulation"], vec, temb, 2)
    return m.linear("linear", m.adaptive_layer_norm(h, shift, scale, eps))
