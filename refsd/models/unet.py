"""The UNet of Stable Diffusion 1.x.

Rombach et al. 2022, appendix E.2; key names as in CompVis/stable-diffusion, openaimodel.py and attention.py.
"""

import numpy as np

from refsd.module import Module, block


@block
def unet(m: Module, x, timesteps, context, num_heads=8, num_groups=32):
    """Predict the noise in a latent.

    x:         [N, C, H, W], H and W multiples of 2^(number of downsamplings)
    timesteps: [N], 0..1000, fractions allowed
    context:   [N, J, E], the text encoder's hidden states
    -> eps:    [N, C, H, W]
    """
    emb = time_embed(m, timesteps)
    h = conv_in(m["input_blocks.0"], x)
    skips = [h]
    for i in range(1, m.count("input_blocks")):
        h = stage(m["input_blocks"][i], h, emb, context, num_heads, num_groups)
        skips.append(h)
    h = stage(m["middle_block"], h, emb, context, num_heads, num_groups)
    for i in range(m.count("output_blocks")):
        h = np.concatenate([h, skips.pop()], axis=1)
        h = stage(m["output_blocks"][i], h, emb, context, num_heads, num_groups)
    h = m.group_norm_silu("out.0", h, num_groups)
    return m.conv2d("out.2", h, padding=1)


def time_embed(m: Module, timesteps):
    """[N] -> [N, D]"""
    model_channels = m.shape("time_embed.0.weight")[1]
    emb = m.timestep_embedding(timesteps, model_channels)
    return m.linear("time_embed.2", m.silu(m.linear("time_embed.0", emb)))


@block
def conv_in(m: Module, x):
    """[N, C, H, W] -> [N, model_channels, H, W]"""
    return m.conv2d("0", x, padding=1)


@block
def stage(m: Module, h, emb, context, num_heads, num_groups):
    """One numbered block: its layers one after the other, each known by its keys. [N, C, H, W] -> [N, K, P, Q]"""
    for i in range(m.count()):
        layer = m[i]
        if "in_layers" in layer:
            h = res_block(layer, h, emb, num_groups)
        elif "transformer_blocks" in layer:
            h = spatial_transformer(layer, h, context, num_heads, num_groups)
        elif "op" in layer:
            h = downsample(layer, h)
        else:
            h = upsample(layer, h)
    return h


@block
def res_block(m: Module, x, emb, num_groups):
    """x [N, C, H, W], emb [N, D] -> [N, K, H, W]"""
    h = m.group_norm_silu("in_layers.0", x, num_groups)
    h = m.conv2d("in_layers.2", h, padding=1)
    h = h + m.linear("emb_layers.1", m.silu(emb))[:, :, None, None]
    h = m.group_norm_silu("out_layers.0", h, num_groups)
    h = m.conv2d("out_layers.3", h, padding=1)
    return h + (m.conv2d("skip_connection", x) if "skip_connection" in m else x)


@block
def downsample(m: Module, x):
    """[N, C, H, W] -> [N, C, H/2, W/2]"""
    return m.conv2d("op", x, stride=2, padding=1)


@block
def upsample(m: Module, x):
    """[N, C, H, W] -> [N, C, 2H, 2W]"""
    return m.conv2d("conv", m.upsample_nearest(x), padding=1)


@block
def spatial_transformer(m: Module, x, context, num_heads, num_groups):
    """Every pixel is a token. x [N, C, H, W], context [N, J, E] -> [N, C, H, W]"""
    N, _, H, W = x.shape
    h = m.conv2d("proj_in", m.group_norm("norm", x, num_groups, eps=1e-6))
    h = h.reshape(N, -1, H * W).swapaxes(1, 2)
    for i in range(m.count("transformer_blocks")):
        h = transformer_block(m["transformer_blocks"][i], h, context, num_heads)
    h = h.swapaxes(1, 2).reshape(N, -1, H, W)
    return m.conv2d("proj_out", h) + x


@block
def transformer_block(m: Module, x, context, num_heads):
    """The pixels look at each other, then at the text. x [N, L, D], context [N, J, E] -> [N, L, D]"""
    h = m.layer_norm("norm1", x)
    x = x + cross_attention(m["attn1"], h, h, num_heads)
    x = x + cross_attention(m["attn2"], m.layer_norm("norm2", x), context, num_heads)
    return x + feed_forward(m["ff"], m.layer_norm("norm3", x))


@block
def cross_attention(m: Module, x, context, num_heads):
    """x [N, L, D], context [N, J, E] -> [N, L, D]"""
    N, L, D = x.shape
    q = m.linear("to_q", x).reshape(N, L, num_heads, -1)
    k = m.linear("to_k", context).reshape(N, context.shape[1], num_heads, -1)
    v = m.linear("to_v", context).reshape(N, context.shape[1], num_heads, -1)
    return m.linear("to_out.0", m.attention(q, k, v).reshape(N, L, D))


@block
def feed_forward(m: Module, x):
    """GEGLU: the second half of the hidden channels gates the first. [N, L, D] -> [N, L, D]"""
    return m.linear("net.2", m.geglu(m.linear("net.0.proj", x)))
