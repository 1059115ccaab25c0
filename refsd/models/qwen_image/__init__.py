"""Qwen-Image: text to image, Edit (2509, 2511) and Layered.

A stack of double-stream blocks like FLUX.1's, with one language model's hidden states as text and no pooled text.
What is new are the positions: a picture's rows and columns count from its centre, and the text follows the picture
on the diagonal of all three axes.

Key names are diffusers', which ComfyUI's single files and GGUF files share. Streams are concatenated text first.
"""

from collections.abc import Callable, Sequence

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.models.flux import Modulation, pack, unpack
from refsd.module import Module, block

AXES_DIM = 16, 56, 56  # rotary channels of a head for the axes picture, row, column
THETA = 10000.0
EPS = 1e-6  # of every norm
CONDITION = -1  # position of Layered's input on the axis picture


@block
def qwen_image(
    m: Module,
    x,
    timesteps,
    context,
    context_mask=None,
    reference: Sequence[np.ndarray] = (),
    zero_cond_t=False,
    axes_dim=AXES_DIM,
    middle_at_0=False,
    control: Callable[..., Sequence[np.ndarray]] | None = None,
):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:            [N, C, H, W], H and W even
    timesteps:    [N], 0..1, the share of noise
    context:      [N, J, E], Qwen2.5-VL's last hidden states without the template's first tokens
    context_mask: [N, J], 0 for tokens that the attention ignores, at any place; None: all are seen
    reference:    [N, C, h, w] each, h and w even: the latents of the pictures to edit
    zero_cond_t:  True for Edit 2511: the references' tokens are modulated as at time 0
    axes_dim:     rotary channels of a head for each axis; their sum is head_dim
    middle_at_0:  True to count an odd number of rows or columns from the middle one, as ComfyUI does
    control:      (x, timesteps, axes_dim) -> what a ControlNet adds, [N, L, D] each; goes without references
    -> v:         [N, C, H, W]

    x has position 0 on the axis picture, the k-th reference has k.

    Source: Wu et al. 2025 (Qwen-Image), section 2.4; diffusers transformer_qwenimage.py.
    """
    H, W = x.shape[2:]
    pictures = [x, *reference]
    ids = np.concatenate([centred_ids(*picture.shape[2:], index=k) for k, picture in enumerate(pictures)])
    text = text_ids(context.shape[1], ids[:, 1:].max() + 1)
    if middle_at_0:
        ids += [0, H // 2 % 2, W // 2 % 2]
    ids = np.concatenate([text, ids])
    tokens = np.concatenate([pack(picture) for picture in pictures], axis=1)
    hints = () if control is None else control(x, timesteps, axes_dim)
    y = transformer(
        m, tokens, ids, H * W // 4, timesteps, context, context_mask, axes_dim, zero_cond_t, hints=hints
    )
    return unpack(y, H, W)


@block
def qwen_image_layered(
    m: Module, x, timesteps, context, condition, context_mask=None, addition=None, axes_dim=AXES_DIM
):
    """Predict the velocity of the layers into which Qwen-Image-Layered takes a picture apart.

    x:         [N, T, C, H, W], noisy latents: the whole picture, then its layers; H and W even
    condition: [N, C, H, W], the latent of the picture to take apart
    addition:  [N], integers: row of the second embedding added to the time's; None: 0, as in diffusers' pipeline
    -> v:      [N, T, C, H, W]

    x has positions 0..T-1 on the axis picture, the condition has -1.

    Source: diffusers transformer_qwenimage.py, QwenEmbedLayer3DRope; pipeline_qwenimage_layered.py.
    """
    N, T, C, H, W = x.shape
    ids = np.concatenate([centred_ids(H, W, k) for k in (*range(T), CONDITION)])
    ids = np.concatenate([text_ids(context.shape[1], ids.max() + 1), ids])
    layers = pack(x.reshape(N * T, C, H, W)).reshape(N, T * H * W // 4, 4 * C)
    tokens = np.concatenate([layers, pack(condition)], axis=1)
    own = layers.shape[1]
    y = transformer(m, tokens, ids, own, timesteps, context, context_mask, axes_dim, addition=addition)
    return unpack(y.reshape(N * T, H * W // 4, -1), H, W).reshape(N, T, -1, H, W)


def transformer(
    m: Module,
    tokens,
    ids,
    own,
    timesteps,
    context,
    context_mask,
    axes_dim,
    zero_cond_t=False,
    addition=None,
    hints: Sequence[np.ndarray] = (),
):
    """Run the network on tokens [N, L, 4C] of pictures; ids [J + L, 3] are the text's positions, then theirs.

    own:   number of tokens to return; the others are of given pictures
    hints: what a ControlNet adds
    -> [N, own, 4C]
    """
    times = np.concatenate([timesteps, np.zeros_like(timesteps)]) if zero_cond_t else timesteps
    vec = time_text_embed(m["time_text_embed"], times, addition)
    img = m.linear("img_in", tokens)
    txt = m.linear("txt_in", rms_norm(m, "txt_norm", context))
    angle = m.rope_angles(ids[None], axes_dim, THETA)
    mask = text_mask(context_mask, img.shape[1])
    for i, hint in enumerate(joined(hints, m.count("transformer_blocks"))):
        txt, img = transformer_block(
            m["transformer_blocks"][i], txt, img, vec, angle, sum(axes_dim), mask, own if zero_cond_t else None
        )
        img = img if hint is None else m.add(img, hint)
    return m.linear("proj_out", norm_out(m["norm_out"], img[:, :own], vec[: len(img)]))


def joined(hints, layers):
    """Return what is added to each block's output: a ControlNet's outputs join runs of blocks of equal length."""
    every = -(-layers // len(hints)) if hints else 1
    return [hints[i // every] if hints else None for i in range(layers)]


def centred_ids(H, W, index=0):
    """Return the positions (index, row, column) of a latent's tokens; rows and columns count from the centre.

    An odd row or column is on the negative side: three rows are -2, -1, 0. -> [H/2 * W/2, 3]
    """
    high, wide = H // 2, W // 2
    row, column = np.indices((high, wide)).reshape(2, -1)
    return np.stack([np.full_like(row, index), row - (high - high // 2), column - (wide - wide // 2)], axis=-1)


def text_ids(J, first):
    """Return the positions of J text tokens: (first, first, first), (first + 1, ...), ... -> [J, 3]

    `first` is one more than the largest row or column of any picture, and of the layers' numbers in Layered.
    """
    return np.repeat(first + np.arange(J)[:, None], 3, axis=1)


def text_mask(context_mask, pictures):
    """Mask text tokens that are not seen; pictures' tokens always are. [N, J] -> [N, 1, 1, J + pictures] or None"""
    if context_mask is None:
        return None
    seen = np.pad(np.asarray(context_mask) != 0, ((0, 0), (0, pictures)), constant_values=True)
    return boolean_mask(seen[:, None, None], np.float64)


@block
def transformer_block(m: Module, txt, img, vec, angle, head_dim, mask=None, own=None):
    """Run a double-stream block: txt and img have separate weights and attend jointly.

    txt:    [N, J, D]
    img:    [N, L, D]
    vec:    [N, D], the conditioning; if `own` is given [2N, D], the second half for tokens at time 0
    angle:  [1, J + L, head_dim / 2], radians; text first
    mask:   broadcastable to [N, heads, J + L, J + L]
    own:    number of img's tokens at the sampler's time; the others are at time 0. None: all
    -> txt: [N, J, D]
       img: [N, L, D]
    """
    txt_attn, txt_mlp = modulations(m, "txt_mod.1", vec[: len(txt)])
    img_attn, img_mlp = modulations(m, "img_mod.1", vec)

    txt_h, img_h = modulate(m, txt, txt_attn), modulate(m, img, img_attn, own)
    img_h, txt_h = attention(m["attn"], img_h, txt_h, angle, head_dim, mask)
    img, txt = gated_add(m, img, img_h, img_attn, own), gated_add(m, txt, txt_h, txt_attn)

    img = gated_add(m, img, mlp(m["img_mlp"], modulate(m, img, img_mlp, own)), img_mlp, own)
    txt = gated_add(m, txt, mlp(m["txt_mlp"], modulate(m, txt, txt_mlp)), txt_mlp)
    return txt, img


@block
def attention(m: Module, img, txt, angle, head_dim, mask):
    """Joint attention; queries and keys are normalised per head, then rotated (rope).

    img [N, L, D], txt [N, J, D] -> the same
    """
    txt_qkv = qkv(m, txt, head_dim, ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k"))
    img_qkv = qkv(m, img, head_dim, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"))
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    y = m.attention(m.rope(q, angle), m.rope(k, angle), v, mask=mask).reshape(*q.shape[:2], -1)
    txt_y, img_y = np.split(y, [txt.shape[1]], axis=1)
    return m.linear("to_out.0", img_y), m.linear("to_add_out", txt_y)


def qkv(m: Module, x, head_dim, projections, norms):
    """[N, L, D] -> q, k, v, each [N, L, H, head_dim]; q and k normalised"""
    q, k, v = (m.linear(name, x).reshape(*x.shape[:2], -1, head_dim) for name in projections)
    return rms_norm(m, norms[0], q), rms_norm(m, norms[1], k), v


@block
def mlp(m: Module, x):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("net.2", m.gelu_tanh(m.linear("net.0.proj", x)))


@block
def time_text_embed(m: Module, timesteps, addition=None):
    """Embed the share of noise, [N] -> [N, D]; Layered adds a row of a second embedding."""
    vec = timestep_embedder(m["timestep_embedder"], timesteps)
    if "addition_t_embedding" not in m:
        return vec
    addition = np.zeros(len(timesteps), int) if addition is None else addition
    return m.add(vec, m.embedding("addition_t_embedding", addition))


@block
def timestep_embedder(m: Module, timesteps):
    """256 sinusoidal channels, cosines first, then an MLP. [N] -> [N, D]"""
    width = m.shape("linear_1.weight")[1]
    return m.linear("linear_2", m.silu(m.linear("linear_1", m.timestep_embedding(timesteps, width, scale=1000.0))))


@block
def norm_out(m: Module, x, vec):
    """The last norm; its scale comes before its shift. [N, L, D], vec [N, D] -> [N, L, D]"""
    scale, shift = np.split(m.linear("linear", m.silu(vec)), 2, axis=-1)
    return m.modulate(m.layer_norm(None, x, eps=EPS), shift, scale)


def modulations(m: Module, name, vec):
    """Compute the Modulations of a stream's attention and MLP from vec [N, D]."""
    out = np.split(m.linear(name, m.silu(vec)), 6, axis=-1)
    return Modulation(*out[:3]), Modulation(*out[3:])


def modulate(m: Module, x, mod, own=None):
    """LayerNorm without weights, then scale and shift. [N, L, D] -> the same"""
    x = m.layer_norm(None, x, eps=EPS)
    if own is None:
        return m.modulate(x, mod.shift, mod.scale)
    parts = zip(np.split(x, [own], axis=1), halves(mod.shift), halves(mod.scale), strict=True)
    return np.concatenate([m.modulate(part, shift, scale) for part, shift, scale in parts], axis=1)


def gated_add(m: Module, x, h, mod, own=None):
    """x + gate * h. [N, L, D] each -> [N, L, D]"""
    if own is None:
        return m.gated_add(x, h, mod.gate)
    parts = zip(np.split(x, [own], axis=1), np.split(h, [own], axis=1), halves(mod.gate), strict=True)
    return np.concatenate([m.gated_add(*part) for part in parts], axis=1)


def halves(x):
    """[2N, D] -> two [N, D]: at the sampler's time, at time 0"""
    return np.split(x, 2)


def rms_norm(m: Module, name, x):
    """[..., D] -> the same"""
    return m.rms_norm_apart(f"{name}.weight", x, eps=EPS)
