"""MMDiT and MMDiT-X: the transformers of Stable Diffusion 3 and 3.5.

Esser et al. 2024, figure 2; key names as in Stability-AI/sd3.5, mmditx.py. The weights decide the variant: ln_q and
ln_k normalise queries and keys (3.5); attn2 is a second attention of the img stream to itself (3.5 medium); a block
whose context has no mlp is the last, which does not update the text.
"""

import numpy as np

from refsd.kernels.patchify import unpatchify_channels_last
from refsd.kernels.sincos_positions import crop_positions
from refsd.module import Module, block
from refsd.numerics.errors import BadInput


def mmdit(m: Module, x, timesteps, context, y, head_dim=64, skip_layers=()):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:           [N, C, H, W], H and W multiples of the patch (2 pixels), H/2 and W/2 no larger than the table
    timesteps:   [N], 1000 sigma, fractions allowed
    context:     [N, J, E], the text encoders' hidden states
    y:           [N, P], the text encoders' pooled outputs
    head_dim:    64 in every released model
    skip_layers: indices of joint blocks to skip (3.5's skip-layer guidance)
    -> v:        [N, C, H, W]

    Raises BadInput for a latent that is no multiple of the patch or is larger than the position table, and for
    weights whose channels are no multiple of head_dim.
    Source: Stability-AI/sd3.5 mmditx.py, MMDiTX.forward.
    """
    D, _, patch, _ = m.shape("x_embedder.proj.weight")
    if D % head_dim:
        raise BadInput(
            f'"{m.prefix}x_embedder.proj.weight": {D} channels are not whole heads of {head_dim}; '
            "say how wide a head is (head_dim)"
        )
    height, width = grid(m, x, patch)
    x = m.add(patch_embed(m["x_embedder"], x, patch), positions(m, height, width))
    c = m.add(embedder(m["t_embedder"], frequencies(m, timesteps)), embedder(m["y_embedder"], y))
    context = m.linear("context_embedder", context)
    for i in range(m.count("joint_blocks")):
        if i not in skip_layers:
            context, x = joint_block(m["joint_blocks"][i], context, x, c, head_dim)
    x = final_layer(m["final_layer"], x, c)
    return m.apply(unpatchify_channels_last, x, patch=patch, height=height)


def grid(m: Module, x, patch):
    """Return the height and width of a latent [N, C, H, W] in patches. Raises BadInput if it does not fit."""
    H, W = x.shape[2:]
    size = table_size(m)
    if H % patch or W % patch:
        raise BadInput(f"x: a latent of {H} x {W} pixels is not whole patches of {patch} x {patch}; pad or crop it")
    if max(H, W) > size * patch:
        raise BadInput(
            f'x: a latent of {H} x {W} pixels; "{m.prefix}pos_embed" has positions for {size * patch} x '
            f"{size * patch} at most; make a smaller picture"
        )
    return H // patch, W // patch


def table_size(m: Module):
    """Return the side of the square position table, in patches. Raises BadInput if it is not square."""
    shape = m.shape("pos_embed")
    size = round(shape[-2] ** 0.5)
    if size * size != shape[-2]:
        raise BadInput(f'"{m.prefix}pos_embed": shape {list(shape)}, expected [1, size*size, D]')
    return size


def positions(m: Module, height, width):
    """Crop the centre of the stored position embeddings, one row per patch. -> [height*width, D]"""
    rows = np.arange(table_size(m) ** 2)[:, None]
    return m.store(m.rows("pos_embed", crop_positions(rows, height, width)[:, 0]))


@block
def patch_embed(m: Module, x, patch):
    """Turn each patch into a token. [N, C, H, W] -> [N, (H/patch)*(W/patch), D]"""
    y = m.conv2d("proj", x, stride=patch)
    N, D = y.shape[:2]
    return y.reshape(N, D, -1).swapaxes(1, 2)


def frequencies(m: Module, timesteps):
    """Embed timesteps as sines and cosines. [N] -> [N, 256]"""
    return m.timestep_embedding(timesteps, m.shape("t_embedder.mlp.0.weight")[1])


@block
def embedder(m: Module, x):
    """[N, E] -> [N, D]"""
    return m.linear("mlp.2", m.silu(m.linear("mlp.0", x)))


def joint_block(m: Module, context, x, c, head_dim=64):
    """Run a joint block: txt and img streams have separate weights and attend jointly.

    In MMDiT-X the img stream also attends to itself.

    context:    [N, J, D]
    x:          [N, L, D]
    c:          [N, D], the conditioning
    -> context: [N, J, D], or None after the last block
       x:       [N, L, D]

    Source: Stability-AI/sd3.5 mmditx.py, block_mixing.
    """
    txt, img = m["context_block"], m["x_block"]
    txt_attn, txt_mlp, _ = modulation(txt, c)
    img_attn, img_mlp, img_attn2 = modulation(img, c)

    txt_qkv = pre_attention(txt, "attn", context, txt_attn, head_dim)
    img_qkv = pre_attention(img, "attn", x, img_attn, head_dim)
    img_qkv2 = pre_attention(img, "attn2", x, img_attn2, head_dim) if img_attn2 else None
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    txt_y, img_y = np.split(attention(m, q, k, v), [context.shape[1]], axis=1)

    x = m.gated_add(x, img.linear("attn.proj", img_y), img_attn[2])
    if img_qkv2:
        x = m.gated_add(x, img.linear("attn2.proj", attention(img, *img_qkv2)), img_attn2[2])
    x = gated_mlp(img, x, *img_mlp)
    if not txt_mlp:
        return None, x
    context = m.gated_add(context, txt.linear("attn.proj", txt_y), txt_attn[2])
    return gated_mlp(txt, context, *txt_mlp), x


def modulation(m: Module, c):
    """Compute (shift, scale, gate) of the attention, the MLP and the second attention, from c [N, D]. Each [N, D].

    Missing parts are (). The last block's txt stream has only shift and scale of its attention.
    """
    D = c.shape[-1]
    y = m.linear("adaLN_modulation.1", m.silu(c))
    parts = np.split(y, y.shape[-1] // D, axis=-1)
    return parts[:3], parts[3:6], parts[6:9]


def pre_attention(m: Module, name, x, parts, head_dim):
    """Modulate x [N, L, D] by parts (shift, scale, ...) -> q, k, v of attention `name`, each [N, L, H, D / H]"""
    shift, scale = parts[:2]
    return qkv(m[name], m.adaptive_layer_norm(x, shift, scale), head_dim)


def qkv(m: Module, x, head_dim):
    """[N, L, D] -> q, k, v, each [N, L, H, D / H]; q and k are normalised if the weights have ln_q and ln_k"""
    N, L, _ = x.shape
    q, k, v = m.linear("qkv", x).reshape(N, L, 3, -1, head_dim).transpose(2, 0, 1, 3, 4)
    if "ln_q" in m:
        q, k = m.rms_norm_apart("ln_q.weight", q), m.rms_norm_apart("ln_k.weight", k)
    return q, k, v


def attention(m: Module, q, k, v):
    """[N, L, H, D] each -> [N, L, H*D]"""
    N, L, _, _ = q.shape
    return m.attention(q, k, v).reshape(N, L, -1)


@block
def gated_mlp(m: Module, x, shift, scale, gate):
    """Add a stream's gated MLP. It is the last operation: its tap is the block's output. [N, L, D] -> the same"""
    return m.gated_add(x, mlp(m["mlp"], m.adaptive_layer_norm(x, shift, scale)), gate)


@block
def mlp(m: Module, x):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("fc2", m.gelu_tanh(m.linear("fc1", x)))


@block
def final_layer(m: Module, x, c):
    """x [N, L, D], c [N, D] -> [N, L, patch*patch*C]"""
    shift, scale = np.split(m.linear("adaLN_modulation.1", m.silu(c)), 2, axis=-1)
    return m.linear("linear", m.adaptive_layer_norm(x, shift, scale))
