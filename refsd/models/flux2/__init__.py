"""FLUX.2: dev and klein.

FLUX.1's two kinds of block, without biases, with gated MLPs, and with one modulation for all blocks of a kind.
There is no pooled text; the context is the hidden states of three layers of a language model (`stacked`).

Key names and order of the streams as in black-forest-labs/flux2, model.py.
"""

from collections.abc import Sequence

import numpy as np

from refsd.models.flux import EPS, final_layer, mlp_embedder, modulation, qk_norm, qkv, rotary_attention
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = 32, 32, 32, 32  # rotary channels of a head for the axes index (of the picture), row, column, word
THETA = 2000.0
REFERENCES_APART = 10
MISTRAL_LAYERS = 10, 20, 30  # hidden states that make up dev's context
QWEN3_LAYERS = 9, 18, 27  # klein's context


@block
def flux2(
    m: Module,
    x,
    timesteps,
    context,
    guidance=None,
    reference=None,
    axes_dim=AXES_DIM,
    theta=THETA,
    eps=EPS,
    cached_references=False,
):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:         [N, C, H, W], packed and normalised by the autoencoder (vae_flux2.py): 128 channels; a token a pixel
    timesteps: [N], 0..1, the share of noise
    context:   [N, J, E], three hidden states of Mistral (dev) or Qwen3 (klein), concatenated on channels
    guidance:  [N], 4 or so; klein ignores it
    reference: latents of the pictures to edit: one [N, C, h, w], or a sequence of any sizes
    axes_dim:  rotary channels of a head for each axis; their sum is head_dim
    theta:     base of the rotary frequencies
    eps:       of every norm
    cached_references: True for klein-9b-kv: references attend to each other only, and are modulated as at time 0
    -> v:      [N, C, H, W]

    Positions (index, row, column, word) are (0, row, column, 0) for x, (0, 0, 0, j) for word j, and
    (10 k, row, column, 0) for the k-th reference, k from 1.

    klein-9b-kv has klein's names and shapes. Nothing that its references compute depends on the step or the text:
    an engine can keep their keys and values from the first step; here each step computes them anew.

    Raises BadInput if the weights embed guidance and none is given.
    Source: black-forest-labs/flux2, model.py and sampling.py; diffusers transformer_flux2.py, pipeline_flux2.py.
    """
    H, W = x.shape[2:]
    pictures = [x, *references(reference)]
    img = m.linear("img_in", np.concatenate([pack(picture) for picture in pictures], axis=1))
    txt = m.linear("txt_in", context)
    own = txt.shape[1] + H * W if cached_references and len(pictures) > 1 else None
    vec = times = conditioning(m, timesteps, guidance)
    if own is not None:
        times = np.concatenate([vec, conditioning(m, np.zeros_like(timesteps), guidance)])
    img_mod = modulation(m["double_stream_modulation_img"], times, 2)
    txt_mod = modulation(m["double_stream_modulation_txt"], vec, 2)
    (mod,) = modulation(m["single_stream_modulation"], times, 1)
    ids = [text_ids(context.shape[1])]
    ids += [picture_ids(picture, REFERENCES_APART * k) for k, picture in enumerate(pictures)]
    angle = m.rope_angles(np.concatenate(ids)[None], axes_dim, theta)
    num_heads = img.shape[2] // sum(axes_dim)

    for i in range(m.count("double_blocks")):
        img, txt = double_stream_block(
            m["double_blocks"][i], img, txt, img_mod, txt_mod, angle, num_heads, eps, own
        )
    both = np.concatenate([txt, img], axis=1)
    for i in range(m.count("single_blocks")):
        both = single_stream_block(m["single_blocks"][i], both, mod, angle, num_heads, eps, own)
    _, img, _ = np.split(both, [txt.shape[1], txt.shape[1] + H * W], axis=1)
    return unpack(final_layer(m["final_layer"], img, vec, eps), H, W)


def stacked(hidden_states: Sequence[np.ndarray], layers: Sequence[int] = MISTRAL_LAYERS):
    """Concatenate some of a language model's hidden states on channels: the context.

    hidden_states: each [N, L, D], the embeddings first
    layers:        MISTRAL_LAYERS for dev, QWEN3_LAYERS for klein
    -> context:    [N, L, 3D]

    The prompt is padded to 512 tokens. black-forest-labs and diffusers pad the ids, and mask the padding inside the
    language model only; stable-diffusion.cpp does so for klein, and for dev appends zeros to the hidden states.

    Raises BadInput if the model has too few layers.
    Source: black-forest-labs/flux2, text_encoder.py; diffusers Flux2Pipeline, Flux2KleinPipeline.
    """
    if max(layers) >= len(hidden_states):
        raise BadInput(
            f"the context takes the output of layer {max(layers)}; the language model has {len(hidden_states) - 1}"
        )
    return np.concatenate([hidden_states[i] for i in layers], axis=-1)


def references(reference) -> Sequence[np.ndarray]:
    """Return the references as a sequence of latents; None: none; one array: one latent [N, C, h, w]."""
    if reference is None:
        return ()
    return (reference,) if hasattr(reference, "shape") else reference


def pack(x):
    """Turn each pixel into a token. [N, C, H, W] -> [N, H * W, C]"""
    return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)


def unpack(tokens, H, W):
    """Undo `pack`. [N, H * W, C] -> [N, C, H, W]"""
    return tokens.swapaxes(1, 2).reshape(tokens.shape[0], -1, H, W)


def picture_ids(x, index=0):
    """Return the positions (index, row, column, 0) of a latent's tokens. x [N, C, H, W] -> [H * W, 4]"""
    row, column = np.indices(x.shape[2:]).reshape(2, -1)
    return np.stack([np.full_like(row, index), row, column, np.zeros_like(row)], axis=-1)


def text_ids(J):
    """Return the positions (0, 0, 0, word) of a text's tokens. -> [J, 4]"""
    return np.pad(np.arange(J)[:, None], ((0, 0), (3, 0)))


def conditioning(m: Module, timesteps, guidance):
    """Embed the conditioning. timesteps [N], guidance [N] or None -> vec [N, D]"""
    waves = m.shape("time_in.in_layer.weight")[1]
    vec = mlp_embedder(m["time_in"], m.timestep_embedding(1000 * timesteps, waves))
    if "guidance_in" in m:
        if guidance is None:
            raise BadInput("the weights embed a guidance: give one (4 is usual), or take klein's weights")
        vec = m.add(vec, mlp_embedder(m["guidance_in"], m.timestep_embedding(1000 * guidance, waves)))
    return vec


@block
def double_stream_block(m: Module, img, txt, img_mod, txt_mod, angle, num_heads=48, eps=EPS, own=None):
    """Run a double block: img and txt streams have separate weights and attend jointly.

    img:     [N, L, D]
    txt:     [N, J, D]
    img_mod: Modulations of the img stream's attention and MLP, the same in every block
    txt_mod: those of the txt stream
    angle:   [N or 1, J + L, D / num_heads / 2], radians; text first
    own:     number of tokens before those of cached references, text included; None: there are none
    -> img:  [N, L, D]
       txt:  [N, J, D]
    """
    (img_attn, img_mlp), (txt_attn, txt_mlp) = img_mod, txt_mod
    drawn = None if own is None else own - txt.shape[1]
    img_qkv = qkv(m["img_attn"], adaptive_norm(m, img, img_attn, eps, drawn), num_heads, eps)
    txt_qkv = qkv(m["txt_attn"], m.adaptive_layer_norm(txt, txt_attn.shift, txt_attn.scale, eps), num_heads, eps)
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    txt_y, img_y = np.split(attention(m, q, k, v, angle, own), [txt.shape[1]], axis=1)

    img = gated_add(m, img, m.linear("img_attn.proj", img_y), img_attn, drawn)
    txt = m.gated_add(txt, m.linear("txt_attn.proj", txt_y), txt_attn.gate)
    img = gated_add(m, img, mlp(m["img_mlp"], adaptive_norm(m, img, img_mlp, eps, drawn)), img_mlp, drawn)
    txt = m.gated_add(
        txt, mlp(m["txt_mlp"], m.adaptive_layer_norm(txt, txt_mlp.shift, txt_mlp.scale, eps)), txt_mlp.gate
    )
    return img, txt


@block
def single_stream_block(m: Module, x, mod, angle, num_heads=48, eps=EPS, own=None):
    """Run a single block: attention and MLP in parallel, on text and picture tokens together.

    x:     [N, L, D], text first
    mod:   Modulation, the same in every block
    angle: [N or 1, L, D / num_heads / 2], radians
    own:   as in a double block
    -> x:  [N, L, D]
    """
    N, L, D = x.shape
    h = m.linear("linear1", adaptive_norm(m, x, mod, eps, own))
    qkv, hidden = np.split(h, [3 * D], axis=-1)
    q, k, v = qkv.reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    q, k = qk_norm(m["norm"], q, k, eps)
    y = attention(m, q, k, v, angle, own)
    return gated_add(m, x, m.linear("linear2", np.concatenate([y, m.swiglu(hidden)], axis=-1)), mod, own)


def attention(m: Module, q, k, v, angle, own):
    """Attend to all tokens; cached references, behind the first `own`, to each other.

    q, k, v: [N, L, H, D] each -> [N, L, H * D]
    """
    if own is None:
        return rotary_attention(m, q, k, v, angle)
    q, k = m.rope(q, angle), m.rope(k, angle)
    y = [m.attention(q[:, :own], k, v), m.attention(q[:, own:], k[:, own:], v[:, own:])]
    return np.concatenate(y, axis=1).reshape(*q.shape[:2], -1)


def adaptive_norm(m: Module, x, mod, eps, own):
    """LayerNorm, scale and shift; of cached references by the second half of mod, [2N, D]. [N, L, D] -> the same"""
    if own is None:
        return m.adaptive_layer_norm(x, mod.shift, mod.scale, eps)
    parts = zip(np.split(x, [own], axis=1), np.split(mod.shift, 2), np.split(mod.scale, 2), strict=True)
    return np.concatenate([m.adaptive_layer_norm(*part, eps) for part in parts], axis=1)


def gated_add(m: Module, x, h, mod, own):
    """x + gate * h, with the halves of the gate as in `adaptive_norm`. [N, L, D] each -> [N, L, D]"""
    if own is None:
        return m.gated_add(x, h, mod.gate)
    parts = zip(np.split(x, [own], axis=1), np.split(h, [own], axis=1), np.split(mod.gate, 2), strict=True)
    return np.concatenate([m.gated_add(*part) for part in parts], axis=1)


@block
def mlp(m: Module, x):
    """SwiGLU. [N, L, D] -> [N, L, D]"""
    return m.linear("2", m.swiglu(m.linear("0", x)))
