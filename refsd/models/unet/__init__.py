"""The UNet of Stable Diffusion 1.x, 2.x, SDXL and SDXL's refiner.

The weights decide the layers of a block, the depth of its transformers and the input channels, so this module also
runs inpainting UNets (9 channels), InstructPix2Pix (8) and distilled UNets (without attention in the middle block,
or without a middle block). Rombach et al. 2022, appendix E.2; Podell et al. 2023 (SDXL), section 2; key names as in
CompVis/stable-diffusion and Stability-AI/generative-models, openaimodel.py and attention.py.
"""

import numpy as np

from refsd.models.ip_adapter import Prompt, image_attention
from refsd.module import Module, block
from refsd.numerics.errors import BadInput


@block
def unet(
    m: Module,
    x,
    timesteps,
    context,
    num_heads=8,
    num_groups=32,
    y=None,
    head_dim=64,
    control=None,
    ip_tokens=None,
    ip_scale=1.0,
):
    """Predict the noise in a latent, or its velocity, depending on the model's training.

    x:         [N, C, H, W]; if H or W is odd on a level, the decoder crops its upsampling to the level's size
    timesteps: [N], 0..1000, fractions allowed
    context:   [N, J, E], the text encoder's hidden states
    num_heads: heads of every attention whose proj_in is a convolution (SD 1); a list: heads per level; the middle
               block has those of the last level
    y:         [N, A], input of SDXL's label_emb, from `size_condition`; else None
    head_dim:  channels per head if proj_in is linear (SD 2, SDXL); a list of num_heads takes precedence
    control:   None, or the output of `controlnet`, which is added to each skip and, the last, to the middle block
    ip_tokens: None, or [N, T, E] of `image_prompt`, to which an IP-Adapter's cross-attentions attend too
    ip_scale:  factor of what these tokens add
    -> eps:    [N, K, H, W]
    """
    if ("label_emb" in m) != (y is not None):
        raise BadInput(f"y is {'missing' if y is None else 'given'}: a UNet takes it if it has label_emb, as SDXL")
    emb = time_embed(m, timesteps)
    if y is not None:
        emb = m.add(emb, label_embed(m["label_emb.0"], y))
    prompt = Prompt(context, ip_tokens, ip_scale)
    h = conv_in(m["input_blocks.0"], x)
    skips, level = [h], 0
    for i in range(1, m.count("input_blocks")):
        part = m["input_blocks"][i]
        h = stage(part, h, emb, prompt, *heads_at(level, num_heads, head_dim), num_groups)
        skips.append(h)
        level += goes_down(part)
    h = stage(m["middle_block"], h, emb, prompt, *heads_at(level, num_heads, head_dim), num_groups)
    if control is not None:
        if len(control) != len(skips) + 1:
            raise BadInput(f"control has {len(control)} parts, this UNet takes {len(skips) + 1}")
        h = m.add(h, control[-1])
        skips = [m.add(skip, more) for skip, more in zip(skips, control[:-1], strict=True)]
    for i in range(m.count("output_blocks")):
        part = m["output_blocks"][i]
        h = np.concatenate([h, skips.pop()], axis=1)
        size = skips[-1].shape[2:] if skips else None
        h = stage(part, h, emb, prompt, *heads_at(level, num_heads, head_dim), num_groups, size)
        level -= goes_up(part)
    h = m.group_norm_silu("out.0", h, num_groups)
    return m.conv2d("out.2", h, padding=1)


def time_embed(m: Module, timesteps):
    """[N] -> [N, D]"""
    model_channels = m.shape("time_embed.0.weight")[1]
    emb = m.timestep_embedding(timesteps, model_channels)
    return m.linear("time_embed.2", m.silu(m.linear("time_embed.0", emb)))


def label_embed(m: Module, y):
    """[N, A] -> [N, D]"""
    return m.linear("2", m.silu(m.linear("0", y)))


def size_condition(m: Module, pooled, sizes, channels=256):
    """Compute SDXL's `y`: the pooled text, then each number in the timestep embedding, of `channels` each.

    pooled: [N, P], from `clip_text_with_projection`
    sizes:  [N, S], pixels: original height and width, crop top and left, target height and width (S = 6);
            the refiner has an aesthetic score (2.5 or 6.0) in place of the target (S = 5)
    -> y:   [N, P + channels S]

    Source: Podell et al. 2023, section 2.2, algorithm 1.
    """
    embedded = m.timestep_embedding(sizes.reshape(-1), channels)
    return np.concatenate([pooled, embedded.reshape(len(sizes), -1)], axis=1)


def goes_down(m: Module) -> bool:
    """True if a numbered block is a downsampling, after which the next level begins."""
    return "0.op" in m


def goes_up(m: Module) -> bool:
    """True if a numbered block ends in an upsampling."""
    return f"{m.count() - 1}.conv" in m


def heads_at(level, num_heads, head_dim):
    """Return num_heads and head_dim of a level; head_dim is None if num_heads is a list, which takes precedence."""
    return (num_heads[level], None) if isinstance(num_heads, list) else (num_heads, head_dim)


@block
def conv_in(m: Module, x):
    """[N, C, H, W] -> [N, model_channels, H, W]"""
    return m.conv2d("0", x, padding=1)


@block
def stage(m: Module, h, emb, prompt: Prompt, num_heads, head_dim, num_groups, size=None):
    """Run the layers of one numbered block, recognised by their keys. [N, C, H, W] -> [N, K, P, Q]

    size: output size of an upsampling, if not twice its input
    """
    for i in range(m.count()):
        layer = m[i]
        if "in_layers" in layer:
            h = res_block(layer, h, emb, num_groups)
        elif "transformer_blocks" in layer:
            h = spatial_transformer(layer, h, prompt, num_heads, head_dim, num_groups)
        elif "op" in layer:
            h = downsample(layer, h)
        else:
            h = upsample(layer, h, size)
    return h


@block
def res_block(m: Module, x, emb, num_groups):
    """x [N, C, H, W], emb [N, D] -> [N, K, H, W]"""
    h = m.group_norm_silu("in_layers.0", x, num_groups)
    h = m.conv2d("in_layers.2", h, padding=1)
    h = m.add(h, m.linear("emb_layers.1", m.silu(emb))[:, :, None, None])
    h = m.group_norm_silu("out_layers.0", h, num_groups)
    h = m.conv2d("out_layers.3", h, padding=1)
    return m.add(h, m.conv2d("skip_connection", x) if "skip_connection" in m else x)


@block
def downsample(m: Module, x):
    """[N, C, H, W] -> [N, C, H/2, W/2]"""
    return m.conv2d("op", x, stride=2, padding=1)


@block
def upsample(m: Module, x, size=None):
    """[N, C, H, W] -> [N, C, 2H, 2W], or cropped to `size`, one row or column less

    Dropping the last row of a 2x upsampling equals nearest interpolation to the smaller size.
    Source: diffusers unet_2d_condition.py, forward_upsample_size; CompVis' UNet accepts no odd sizes.
    """
    H, W = size or (2 * x.shape[2], 2 * x.shape[3])
    return m.conv2d("conv", m.upsample_nearest(x)[:, :, :H, :W], padding=1)


@block
def spatial_transformer(m: Module, x, prompt: Prompt, num_heads, head_dim, num_groups):
    """Run transformer blocks on the pixels as tokens. x [N, C, H, W] -> [N, C, H, W]

    SD 1 projects pixels (1x1 convolutions), SD 2 and SDXL tokens (linear layers): the same map in other shapes.
    """
    H, W = x.shape[2:]
    D, *rest = m.shape("proj_in.weight")
    linear = len(rest) == 1
    heads = num_heads
    if linear and head_dim is not None:
        if D % head_dim:
            raise BadInput(
                f"{m.prefix}proj_in has {D} channels: expected a multiple of head_dim, which is {head_dim}"
            )
        heads = D // head_dim
    h = m.group_norm("norm", x, num_groups, eps=1e-6)
    h = m.linear("proj_in", tokens(h)) if linear else tokens(m.conv2d("proj_in", h))
    for i in range(m.count("transformer_blocks")):
        h = transformer_block(m["transformer_blocks"][i], h, prompt, heads)
    h = pixels(m.linear("proj_out", h), H, W) if linear else m.conv2d("proj_out", pixels(h, H, W))
    return m.add(h, x)


def tokens(x):
    """[N, C, H, W] -> [N, H*W, C]"""
    return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)


def pixels(h, H, W):
    """[N, H*W, C] -> [N, C, H, W]"""
    return h.swapaxes(1, 2).reshape(len(h), -1, H, W)


@block
def transformer_block(m: Module, x, prompt: Prompt, num_heads):
    """Self-attention, cross-attention to the prompt, MLP. x [N, L, D] -> [N, L, D]

    If attn1's keys have the text's width, as in SDXS-09's first level, attn1 is a cross-attention too.
    """
    h = m.layer_norm("norm1", x)
    crosses = m.shape("attn1.to_k.weight")[1] != x.shape[-1]
    x = m.add(x, cross_attention(m["attn1"], h, Prompt(prompt.text if crosses else h), num_heads))
    x = m.add(x, cross_attention(m["attn2"], m.layer_norm("norm2", x), prompt, num_heads))
    return m.add(x, feed_forward(m["ff"], m.layer_norm("norm3", x)))


@block
def cross_attention(m: Module, x, prompt: Prompt, num_heads):
    """x [N, L, D] -> [N, L, D]"""
    N, L, D = x.shape
    J = prompt.text.shape[1]
    q = m.linear("to_q", x).reshape(N, L, num_heads, -1)
    k = m.linear("to_k", prompt.text).reshape(N, J, num_heads, -1)
    v = m.linear("to_v", prompt.text).reshape(N, J, num_heads, -1)
    h = m.attention(q, k, v)
    if prompt.image is not None:
        h = m.add(h, image_attention(m, q, prompt))
    return m.linear("to_out.0", h.reshape(N, L, D))


@block
def feed_forward(m: Module, x):
    """GEGLU: the second half of the hidden channels gates the first. [N, L, D] -> [N, L, D]"""
    return m.linear("net.2", m.geglu(m.linear("net.0.proj", x)))
