"""The transformer of Ernie-Image: one stack of blocks, the picture before the words, one modulation for all blocks.

What is new is the rotation: neighbouring channels have the same angle, as for interleaved pairs, but a channel is
turned with the one half a head away, as for halves. So the two channels of a pair have different angles.

Key names are diffusers', which single files share.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.models.zimage import caption_lengths
from refsd.module import Module, block

AXES_DIM = 32, 48, 48  # rotary channels of a head for the axes word, row, column
THETA = 256.0
EPS = 1e-6  # of every norm


@block
def ernie_image(m: Module, x, timesteps, context, lengths=None, axes_dim=AXES_DIM, theta=THETA, eps=EPS):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:         [N, C, H, W], the latent of FLUX.2's autoencoder, packed and normalised: a pixel is a token
    timesteps: [N], 0..1, the share of noise
    context:   [N, J, E], Ministral's hidden states before the last layer
    lengths:   [N], length of each prompt in tokens; tokens after it are ignored; None: all J
    axes_dim:  rotary channels of a head for each axis; their sum is head_dim
    theta:     base of the rotary frequencies
    eps:       of every norm
    -> v:      [N, K, H, W]

    The j-th word has position (j, 0, 0), the picture's tokens (length of the prompt, row, column).

    Raises BadInput if a length is not in 1..J.
    Source: diffusers transformer_ernie_image.py.
    """
    N, _, H, W = x.shape
    lengths = caption_lengths(context, lengths)
    temb = time_embedding(m["time_embedding"], timesteps)
    mods = modulation(m, temb)
    img = m.conv2d("x_embedder.proj", x).reshape(N, -1, H * W).transpose(0, 2, 1)
    both = np.concatenate([img, m.linear("text_proj", context)], axis=1)
    angle = m.rope_angles(token_ids(lengths, context.shape[1], H, W), axes_dim, theta)
    mask = seen(lengths, context.shape[1], H * W)
    for i in range(m.count("layers")):
        both = transformer_block(m["layers"][i], both, mods, angle, mask, eps)
    y = m.linear("final_linear", final_norm(m["final_norm"], both, temb, eps))[:, : H * W]
    return y.transpose(0, 2, 1).reshape(N, -1, H, W)


def token_ids(lengths, J, H, W):
    """Return the positions (word, row, column) of the picture's tokens, then of J words. -> [N, H * W + J, 3]"""
    row, column = np.indices((H, W)).reshape(2, -1)
    word = np.arange(J)
    words = np.stack([word, 0 * word, 0 * word], axis=-1)
    pictures = [np.stack([np.full_like(row, length), row, column], axis=-1) for length in lengths]
    return np.stack([np.concatenate([picture, words]) for picture in pictures])


def seen(lengths, J, pictures):
    """Mask the words after each prompt's end. -> [N, 1, 1, pictures + J]"""
    words = np.arange(J) < np.asarray(lengths)[:, None]
    there = np.pad(words, ((0, 0), (pictures, 0)), constant_values=True)
    return boolean_mask(there[:, None, None], np.float64)


@block
def time_embedding(m: Module, timesteps):
    """Sinusoidal channels, sines first, then an MLP. [N] -> [N, D]"""
    waves = m.timestep_embedding(timesteps, m.shape("linear_1.weight")[1], scale=1000.0, sin_first=True)
    return m.linear("linear_2", m.silu(m.linear("linear_1", waves)))


def modulation(m: Module, temb):
    """Compute shift, scale and gate of the attention, then of the MLP. temb [N, D] -> six of [N, D]"""
    return np.split(m.linear("adaLN_modulation.1", m.silu(temb)), 6, axis=-1)


@block
def transformer_block(m: Module, h, mods, angle, mask, eps):
    """h [N, L, D], mods: six of [N, D], angle [N, L, head_dim / 2] -> [N, L, D]"""
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = mods
    y = m.modulate(m.rms_norm_apart("adaLN_sa_ln.weight", h, eps), shift, scale)
    h = m.gated_add(h, attention(m["self_attention"], y, angle, mask, eps), gate)
    y = m.modulate(m.rms_norm_apart("adaLN_mlp_ln.weight", h, eps), mlp_shift, mlp_scale)
    return m.gated_add(h, mlp(m["mlp"], y), mlp_gate)


@block
def attention(m: Module, h, angle, mask, eps):
    """h [N, L, D] -> the same"""
    N, L, _ = h.shape
    q, k, v = (m.linear(name, h).reshape(N, L, -1, 2 * angle.shape[2]) for name in ("to_q", "to_k", "to_v"))
    q, k = m.rms_norm("norm_q.weight", q, eps), m.rms_norm("norm_k.weight", k, eps)
    y = m.attention(turn(m, q, angle), turn(m, k, angle), v, mask=mask)
    return m.linear("to_out.0", y.reshape(N, L, -1))


def turn(m: Module, x, angle):
    """Turn channels i and i + D/2, each by the angle of its own place. x [N, L, H, D], angle [N, L, D/2]

    y_i         = x_i cos a_i             - x_{i + D/2} sin a_i
    y_{i + D/2} = x_{i + D/2} cos a_{i + D/2} + x_i sin a_{i + D/2}         a_i = angle_{i // 2}
    """
    half = angle.shape[2]
    own = np.repeat(angle, 2, axis=2)
    low = m.rope_halves(x, own[:, :, :half])[..., :half]
    return np.concatenate([low, m.rope_halves(x, own[:, :, half:])[..., half:]], axis=3)


@block
def mlp(m: Module, h):
    """GEGLU with separate matrices. [N, L, D] -> the same"""
    return m.linear("linear_fc2", m.multiply(m.linear("up_proj", h), m.gelu(m.linear("gate_proj", h))))


@block
def final_norm(m: Module, h, temb, eps):
    """Scale before shift, of the time embedding itself. h [N, L, D], temb [N, D] -> [N, L, D]"""
    scale, shift = np.split(m.linear("linear", temb), 2, axis=-1)
    return m.modulate(m.layer_norm(None, h, eps), shift, scale)
