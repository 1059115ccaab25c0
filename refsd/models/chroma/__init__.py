"""Chroma: FLUX.1's blocks, with all modulation computed by one small network, the approximator.

Key names as in lodestone-rock/flow, src/models/chroma/model.py.
"""

from itertools import islice

import numpy as np

from refsd.models.flux import (
    AXES_DIM,
    Modulation,
    angles,
    double_stream,
    grid_ids,
    mlp_embedder,
    norm,
    pack,
    single_stream,
    unpack,
)
from refsd.module import Module, block


@block
def chroma(m: Module, x, timesteps, context, context_mask=None, axes_dim=AXES_DIM):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:            [N, C, H, W], H and W even
    timesteps:    [N], 0..1, the share of noise
    context:      [N, J, E], T5's hidden states
    context_mask: [N, J], nonzero for text tokens that take part in the attention, see `seen`; None: all do
    axes_dim:     rotary channels of a head for each axis (index, row, column)
    -> v:         [N, C, H, W]

    Source: lodestone-rock/flow, src/models/chroma/model.py; diffusers transformer_chroma.py.
    """
    H, W = x.shape[2:]
    img, ids = m.linear("img_in", pack(x)), grid_ids(H, W)
    img, (shift, scale) = streams(m, img, timesteps, context, ids, context_mask, axes_dim)
    return unpack(m.linear("final_layer.linear", m.modulate(norm(m["final_layer"], img), shift, scale)), H, W)


def streams(m: Module, img, timesteps, context, ids, context_mask, axes_dim):
    """Run FLUX.1's blocks under the approximator's modulation: everything between the first and the last layer.

    img:            [N, L, D], the picture's tokens
    timesteps:      [N], 0..1
    context:        [N, J, E]
    ids:            [L, A], positions of the tokens
    context_mask, axes_dim: as in `chroma`
    -> img:         [N, L, D]
       last:        shift and scale for the final layer, [N, D] each

    The approximator's vectors are in the order: single blocks (shift, scale, gate), img stream of the double blocks
    (shift, scale, gate, twice), their txt stream, final layer (shift, scale).
    """
    J = context.shape[1]
    doubles, singles = m.count("double_blocks"), m.count("single_blocks")
    vectors = iter(approximator(m["distilled_guidance_layer"], timesteps, 3 * singles + 12 * doubles + 2))
    single_mods = [next_modulation(vectors) for _ in range(singles)]
    img_mods = [(next_modulation(vectors), next_modulation(vectors)) for _ in range(doubles)]
    txt_mods = [(next_modulation(vectors), next_modulation(vectors)) for _ in range(doubles)]

    txt = m.linear("txt_in", context)
    angle = angles(m, J, ids, axes_dim)
    pairs = None if context_mask is None else pair_mask(context_mask, img.shape[1])
    num_heads = img.shape[2] // sum(axes_dim)
    for i in range(doubles):
        img, txt = double_block(m["double_blocks"][i], img, txt, img_mods[i], txt_mods[i], angle, num_heads, pairs)
    both = np.concatenate([txt, img], axis=1)
    for i in range(singles):
        both = single_block(m["single_blocks"][i], both, single_mods[i], angle, num_heads, pairs)
    _, img = np.split(both, [J], axis=1)
    return img, tuple(vectors)


double_block, single_block = block(double_stream), block(single_stream)


@block
def approximator(m: Module, timesteps, n):
    """Compute the n vectors that modulate the blocks, each from the timestep, guidance 0 and the vector's index.

    timesteps: [N], 0..1
    -> [n, N, D]

    The index is embedded like a timestep: n = 344 needs angles up to 343000 radians, which float32 knows to 0.03.
    So two engines in float32 may differ by more than their sums do: 7e-5 measured, for 32 vectors.
    """
    width = m.shape("in_proj.weight")[1] // 4
    now = m.timestep_embedding(np.append(1000 * timesteps, 0 * timesteps), width)
    now, guidance = np.split(now, 2)
    index = m.timestep_embedding(1000.0 * np.arange(n), 2 * width)
    given = np.concatenate([now, guidance], axis=1)
    x = np.concatenate(
        [np.broadcast_to(given, (n, *given.shape)), np.repeat(index[:, None], len(given), axis=1)], axis=2
    )
    x = m.linear("in_proj", x)
    for i in range(m.count("layers")):
        x = m.add(x, mlp_embedder(m["layers"][i], m.rms_norm(f"norms.{i}.scale", x)))
    return m.linear("out_proj", x)


def next_modulation(vectors):
    """Take the next three vectors of an iterator as a Modulation."""
    return Modulation(*islice(vectors, 3))


def seen(attention_mask):
    """Extend the tokenizer's mask by the first padding token, as in Chroma's training. [N, J] -> bool [N, J]

    Source: lodestone-rock/flow, modify_mask_to_attend_padding; diffusers pipeline_chroma.py.
    """
    attention_mask = np.asarray(attention_mask)
    return np.arange(attention_mask.shape[1]) <= attention_mask.sum(axis=1, keepdims=True)


def pair_mask(mask, L):
    """Mask pairs of tokens: a masked text token neither attends nor is attended to. -> [N, 1, J + L, J + L]

    mask: [N, J], text tokens; the picture's L tokens are never masked
    """
    tokens = np.pad(np.asarray(mask) != 0, ((0, 0), (0, L)), constant_values=True)
    return np.where(tokens[:, None, :, None] & tokens[:, None, None, :], 0.0, -np.inf)
