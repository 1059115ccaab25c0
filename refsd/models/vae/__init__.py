"""AutoencoderKL: encode pictures to latents of an eighth of the size, and decode them.

Rombach et al. 2022, appendix G; key names as in CompVis/latent-diffusion, diffusionmodules/model.py.
Every GroupNorm has eps 1e-6.

Layers that a checkpoint lacks are skipped: quant_conv and post_quant_conv (SD3, FLUX.1 and models with FLUX.1's
autoencoder have neither), the middle block's attention (diffusers' mid_block_add_attention = False).
Sizes that are no multiple of 8 are rounded down: each level drops an odd row or column.
"""

import numpy as np

from refsd.module import Module, block
from refsd.numerics.errors import BadInput


@block
def encode(m: Module, x, num_groups=32):
    """Encode a picture to the posterior of its latent.

    x:         [N, 3, H, W], -1..1, 8 pixels or more
    -> mean:   [N, Z, floor(H/8), floor(W/8)], neither shifted nor scaled
       logvar: the same shape; clip it to -30..20 before sampling

    Raises BadInput for a picture smaller than one latent position.
    """
    smallest = 2 ** (m.count("encoder.down") - 1)
    if min(x.shape[2:]) < smallest:
        raise BadInput(f"x is {x.shape[2]} x {x.shape[3]} pixels, these weights take at least {smallest}")
    h = encoder(m["encoder"], x, num_groups)
    if "quant_conv" in m:
        h = m.conv2d("quant_conv", h)
    mean, logvar = np.split(h, 2, axis=1)
    return mean, logvar


@block
def decode(m: Module, z, num_groups=32):
    """Decode a latent to a picture.

    z:      [N, Z, H, W], neither shifted nor scaled
    -> out: [N, 3, 8H, 8W], about -1..1, not clipped
    """
    if "post_quant_conv" in m:
        z = m.conv2d("post_quant_conv", z)
    return decoder(m["decoder"], z, num_groups)


@block
def encoder(m: Module, x, num_groups):
    """[N, 3, H, W] -> [N, 2Z, floor(H/8), floor(W/8)]"""
    h = m.conv2d("conv_in", x, padding=1)
    for i in range(m.count("down")):
        h = down(m["down"][i], h, num_groups)
    h = mid(m["mid"], h, num_groups)
    h = m.group_norm_silu("norm_out", h, num_groups, eps=1e-6)
    return m.conv2d("conv_out", h, padding=1)


@block
def decoder(m: Module, z, num_groups):
    """[N, Z, H, W] -> [N, 3, 8H, 8W]; up.0 is the level at full resolution, which runs last"""
    h = m.conv2d("conv_in", z, padding=1)
    h = mid(m["mid"], h, num_groups)
    for i in reversed(range(m.count("up"))):
        h = up(m["up"][i], h, num_groups)
    h = m.group_norm_silu("norm_out", h, num_groups, eps=1e-6)
    return m.conv2d("conv_out", h, padding=1)


@block
def down(m: Module, h, num_groups):
    """[N, C, H, W] -> [N, K, floor(H/2), floor(W/2)], or [N, K, H, W] on the last level"""
    for i in range(m.count("block")):
        h = res_block(m["block"][i], h, num_groups)
    if "downsample" in m:
        h = m.conv2d("downsample.conv", h, stride=2, padding=(0, 1, 0, 1))
    return h


@block
def up(m: Module, h, num_groups):
    """[N, C, H, W] -> [N, K, 2H, 2W], or [N, K, H, W] on the level at full resolution"""
    for i in range(m.count("block")):
        h = res_block(m["block"][i], h, num_groups)
    if "upsample" in m:
        h = m.conv2d("upsample.conv", m.upsample_nearest(h), padding=1)
    return h


@block
def mid(m: Module, h, num_groups):
    """[N, C, H, W] -> the same"""
    h = res_block(m["block_1"], h, num_groups)
    if "attn_1" in m:
        h = attention(m["attn_1"], h, num_groups)
    return res_block(m["block_2"], h, num_groups)


@block
def res_block(m: Module, x, num_groups):
    """[N, C, H, W] -> [N, K, H, W]"""
    h = m.group_norm_silu("norm1", x, num_groups, eps=1e-6)
    h = m.conv2d("conv1", h, padding=1)
    h = m.group_norm_silu("norm2", h, num_groups, eps=1e-6)
    h = m.conv2d("conv2", h, padding=1)
    return m.add(h, m.conv2d("nin_shortcut", x) if "nin_shortcut" in m else x)


@block
def attention(m: Module, x, num_groups):
    """Self-attention over all pixels, with one head. [N, C, H, W] -> the same"""
    N, C, H, W = x.shape
    h = m.group_norm("norm", x, num_groups, eps=1e-6)
    q, k, v = (m.conv2d(name, h).reshape(N, C, H * W).swapaxes(1, 2)[:, :, None] for name in "qkv")
    h = m.attention(q, k, v)[:, :, 0].swapaxes(1, 2).reshape(N, C, H, W)
    return m.add(x, m.conv2d("proj_out", h))
