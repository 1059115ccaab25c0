"""FLUX.3 klein: base, step-distilled, and editing with references.

Three modes of tokens (text, picture, references) run through blocks of their own, then together through shared
ones. All blocks are alike: attention and MLP run in parallel on the same modulated tokens. Each mode has one
modulation for its own blocks, and one for the shared blocks.

Key names are Black Forest Labs', which ComfyUI's files share.
"""

import numpy as np

from refsd.models.flux import final_layer, mlp_embedder, modulation, qk_norm, rotary_attention
from refsd.models.flux2 import pack, references, text_ids, unpack
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = 32, 32, 32, 32  # rotary channels of a head for the axes frame, row, column, word
THETA = 10000.0
EPS = 1e-6  # of every norm
STEP = 0.5  # distance between neighbouring rows and columns of a picture
CONTEXT_LAYERS = 4, 8, 12, 16, 20, 24, 28, 32  # hidden states of Qwen3-VL that make up the context


@block
def flux3(
    m: Module,
    x,
    timesteps,
    context,
    target_timesteps=None,
    reference=None,
    axes_dim=AXES_DIM,
    theta=THETA,
    eps=EPS,
):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:         [N, C, H, W], packed and normalised by FLUX.2's autoencoder: 128 channels; a token a pixel
    timesteps: [N], 0..1, the share of noise
    context:   [N, J, E], hidden states CONTEXT_LAYERS of Qwen3-VL, concatenated on channels
    target_timesteps: [N], 0..1, the time at which the sampler's step ends; only the distilled model takes it
    reference: latents of the pictures to edit: one [N, C, h, w], or a sequence of any sizes
    axes_dim:  rotary channels of a head for each axis; their sum is head_dim
    theta:     base of the rotary frequencies
    eps:       of every norm
    -> v:      [N, C, H, W]

    All tokens of the context are seen, those of its padding too.

    Raises BadInput if the weights embed target_timesteps and none are given.
    Source: diffusers transformer_flux3.py.
    """
    H, W = x.shape[2:]
    vec = conditioning(m, timesteps, target_timesteps)
    streams = {"txt": m.linear("txt_in", context), "image": m.linear("emb_in.image", pack(x))}
    ids = {"txt": text_ids(context.shape[1]), "image": picture_ids(x)}
    if pictures := references(reference):
        tokens = np.concatenate([pack(picture) for picture in pictures], axis=1)
        streams["image_cond"] = m.linear("emb_in.image_cond", tokens)
        ids["image_cond"] = np.concatenate([picture_ids(one, -k) for k, one in enumerate(pictures, 1)])
    angles = {mode: m.rope_angles(places[None], axes_dim, theta) for mode, places in ids.items()}

    for mode, h in streams.items():
        mods = modulation(m["early_stream_modulations"][mode], vec[mode], 1)
        blocks = m["txt_mode_blocks"] if mode == "txt" else m["content_mode_blocks"][mode]
        for i in range(blocks.count()):
            (h,) = parallel_block(blocks[i], (h,), mods, angles[mode], sum(axes_dim), eps)
        streams[mode] = h
    joint = tuple(streams.values())
    mods = [modulation(m["single_stream_modulations"][mode], vec[mode], 1)[0] for mode in streams]
    angle = np.concatenate([*angles.values()], axis=1)
    for i in range(m.count("single_blocks")):
        joint = parallel_block(m["single_blocks"][i], joint, mods, angle, sum(axes_dim), eps)
    return unpack(final_layer(m["final_layer"]["image"], joint[1], vec["image"], eps), H, W)


def picture_ids(x, word=0):
    """Return the positions (0, row / 2, column / 2, word) of a latent's tokens. x [N, C, H, W] -> [H * W, 4]"""
    row, column = STEP * np.indices(x.shape[2:]).reshape(2, -1)
    return np.stack([np.zeros_like(row), row, column, np.full_like(row, word)], axis=-1)


def conditioning(m: Module, timesteps, target_timesteps):
    """Embed the time of each mode: the picture's, and 0 for text and references. [N] -> mode: [N, D]

    The distilled model adds the embedding of the time that the step jumps to, in every mode.

    Raises BadInput if the weights embed that time and none is given.
    """
    waves = m.shape("time_in.in_layer.weight")[1]
    moving, still = (
        mlp_embedder(m["time_in"], m.timestep_embedding(1000 * t, waves))
        for t in (timesteps, np.zeros_like(timesteps))
    )
    if "ref_time_in" in m:
        if target_timesteps is None:
            raise BadInput("the weights embed the time at which a step ends: give target_timesteps")
        target = mlp_embedder(m["ref_time_in"], m.timestep_embedding(1000 * target_timesteps, waves))
        moving, still = m.add(moving, target), m.add(still, target)
    return {"txt": still, "image": moving, "image_cond": still}


@block
def parallel_block(m: Module, streams, mods, angle, head_dim, eps=EPS):
    """Run attention and MLP in parallel on the tokens of one mode or of several, each modulated in its own way.

    streams:    [N, L_i, D] of each mode
    mods:       Modulation of each
    angle:      [1, sum of the L_i, head_dim / 2], radians
    -> streams: the same shapes
    """
    pairs = [*zip(streams, mods, strict=True)]
    h = np.concatenate([m.adaptive_layer_norm(x, mod.shift, mod.scale, eps) for x, mod in pairs], axis=1)
    y = m.add(attention(m, h, angle, head_dim, eps), mlp(m, h))
    parts = np.split(y, np.cumsum([x.shape[1] for x in streams])[:-1], axis=1)
    return tuple(m.gated_add(x, part, mod.gate) for (x, mod), part in zip(pairs, parts, strict=True))


def attention(m: Module, h, angle, head_dim, eps=EPS):
    """Attention; queries and keys are normalised per head, then rotated. [N, L, D] -> the same"""
    q, k, v = (m.linear(name, h).reshape(*h.shape[:2], -1, head_dim) for name in ("q_proj", "k_proj", "v_proj"))
    q, k = qk_norm(m["norm"], q, k, eps)
    return m.linear("attn_out", rotary_attention(m, q, k, v, angle))


def mlp(m: Module, h):
    """SwiGLU. [N, L, D] -> the same"""
    return m.linear("mlp_out", m.swiglu(m.linear("mlp_in", h)))
