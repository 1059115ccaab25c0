"""ESRGAN's generator, RRDBNet, an upscaler.

Wang et al. 2018, section 3.1; Wang et al. 2021 (Real-ESRGAN), figure 4. Key names as in XPixelGroup/BasicSR,
rrdbnet_arch.py; refsd/models/esrgan/network.py maps two older layouts to them.
"""

import math

import numpy as np

from refsd.kernels.pixel_shuffle import pixel_unshuffle
from refsd.kernels.relu import leaky_relu
from refsd.module import Module, block
from refsd.numerics.errors import BadInput


@block
def rrdbnet(m: Module, x):
    """Enlarge a picture.

        scale = 2^(number of conv_up) / p,  p^2 = channels of conv_first / channels of x

    x:    [N, C, H, W], 0..1, red first, H and W multiples of p
    -> y: [N, C, scale*H, scale*W], about 0..1, not clipped

    Scales below 4 come about in two ways: files of the old layout omit upsampling convolutions (p = 1);
    Real-ESRGAN's have both, and start with a pixel unshuffle of p: p = 2 for x2, p = 4 for x1.
    """
    p = math.isqrt(m.shape("conv_first.weight")[1] // x.shape[1])
    if x.shape[2] % p or x.shape[3] % p:
        raise BadInput(f"x is {x.shape[2]} x {x.shape[3]} pixels, these weights take multiples of {p}: pad it")
    x = m.apply(pixel_unshuffle, x, factor=p) if p > 1 else x
    feat = m.conv2d("conv_first", x, padding=1)
    h = feat
    for i in range(m.count("body")):
        h = rrdb(m["body"][i], h)
    feat = m.add(feat, m.conv2d("conv_body", h, padding=1))
    for name in ("conv_up1", "conv_up2"):
        if name in m:
            feat = lrelu(m, m.conv2d(name, m.upsample_nearest(feat), padding=1))
    return m.conv2d("conv_last", lrelu(m, m.conv2d("conv_hr", feat, padding=1)), padding=1)


@block
def rrdb(m: Module, x):
    """Residual-in-residual dense block: x + 0.2 * (three dense blocks). [N, D, H, W] -> the same"""
    h = x
    for i in (1, 2, 3):
        h = dense_block(m[f"rdb{i}"], h)
    return m.add(m.multiply(h, 0.2), x)


@block
def dense_block(m: Module, x):
    """Dense block: each convolution takes all earlier outputs; x + 0.2 * the last one. [N, D, H, W] -> the same"""
    seen = x
    for i in (1, 2, 3, 4):
        seen = np.concatenate([seen, lrelu(m, m.conv2d(f"conv{i}", seen, padding=1))], axis=1)
    return m.add(m.multiply(m.conv2d("conv5", seen, padding=1), 0.2), x)


def lrelu(m: Module, x):
    """Leaky ReLU: multiply negative values by 0.2. [...] -> [...]"""
    return m.apply(leaky_relu, x, slope=0.2)
