"""TAESD, TAESDXL, TAESD3, TAEF1 and TAEF2: autoencoders distilled into a few convolutions.

Key names as in madebyollin/taesd, taesd.py, whose encoder and decoder are two files. Each is one nn.Sequential, and
a key begins with the layer's index ("3.conv.0.weight"). Layers without weights have an index too, but no keys.
Latents are in the denoiser's scale: 4 channels for SD 1.x and SDXL, 16 for SD3 and FLUX.1, 32 for FLUX.2, whose
denoiser takes each 2x2 square packed into 128 channels, as `pixel_unshuffle` does.
"""

import numpy as np

from refsd.kernels.relu import relu
from refsd.kernels.tanh import tanh
from refsd.module import Module, block


@block
def encode(m: Module, x):
    """Encode a picture to its latent; there is no posterior to sample from.

    x:    [N, 3, H, W], 0..1 (not the -1..1 of AutoencoderKL)
    -> z: [N, Z, ceil(H/8), ceil(W/8)]

    Convolutions that halve the size have no bias; the others have one.
    """
    for i in range(m.count()):
        if "conv" in m[i]:
            x = res_block(m[i], x)
        else:
            stride = 1 if f"{m.prefix}{i}.bias" in m.weights else 2
            x = m.conv2d(f"{i}", x, stride, padding=1)
    return x


@block
def decode(m: Module, z):
    """Decode a latent to a picture.

    z:    [N, Z, H, W]
    -> x: [N, 3, 8H, 8W], about 0..1, not clipped

    Layer 0 clamps softly to -3..3, layer 2 is a ReLU; every later layer without weights doubles the size.
    """
    h = m.multiply(m.apply(tanh, m.apply(np.divide, z, 3)), 3)
    h = m.apply(relu, m.conv2d("1", h, padding=1))
    i = 3
    while i in m or i + 1 in m:
        if i not in m:
            h = m.upsample_nearest(h)
        elif "conv" in m[i]:
            h = res_block(m[i], h)
        else:
            h = m.conv2d(f"{i}", h, padding=1)
        i += 1
    return h


@block
def res_block(m: Module, x):
    """Residual block: three convolutions with ReLUs between, and a ReLU after the sum. [N, C, H, W] -> the same

    TAEF2's blocks at latent resolution first add `pool`.
    """
    if "pool" in m:
        x = m.add(x, pool(m["pool"], x))
    h = m.apply(relu, m.conv2d("conv.0", x, padding=1))
    h = m.apply(relu, m.conv2d("conv.2", h, padding=1))
    return m.apply(relu, m.add(m.conv2d("conv.4", h, padding=1), x))


@block
def pool(m: Module, x):
    """1x1 convolutions around a group norm over the whole picture. [N, C, H, W] -> the same"""
    h = m.apply(relu, m.group_norm("1", m.conv2d("0", x), num_groups=4, eps=1e-5))
    return m.conv2d("3", h)
