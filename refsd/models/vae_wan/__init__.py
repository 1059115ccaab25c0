"""Wan 2.1's and Qwen-Image's autoencoder: pictures and videos, with convolutions over frames that see no later one.

Wan-Video/Wan2.1, wan/modules/vae.py; key names as there: `conv1` and `conv2` at the root are the 1x1 convolutions
that Stable Diffusion calls quant_conv and post_quant_conv, `head` is a norm, SiLU and a convolution.

A picture is a video of one frame. The first latent frame holds the first frame alone, each later one four frames.
The original runs four frames at a time and keeps the last two inputs of every convolution; here a convolution
runs over all frames at once, with two frames of zeros before the first, which is the same sum. Only the layers
that change the number of frames treat the first frame apart: it never enters `time_conv` of an upsampling, not even
as the past of the second frame.
"""

import numpy as np

from refsd.module import Module, block

# Padding (front, back, top, bottom, left, right) of a 3x3x3 convolution that sees no later frame.
CAUSAL = 2, 0, 1, 1, 1, 1
# The same of a convolution of 3 frames over single pixels.
CAUSAL_IN_TIME = 2, 0, 0, 0, 0, 0


@block
def encode(m: Module, x, latents_mean, latents_std):
    """Encode a video to the posterior of its latent, each channel normalised.

    x:         [N, 3, 1 + 4F, H, W], -1..1; frames beyond the last whole four are left out
    -> mean:   [N, Z, 1 + F, floor(H/8), floor(W/8)], the denoiser's input
       logvar: the same shape, of the normalised latent; clip it to -30..20 before sampling

    latents_mean, latents_std: [Z], statistics of the posterior's means
    """
    later = frames_per_latent(m["encoder"])
    h = encoder(m["encoder"], x[:, :, : 1 + (x.shape[2] - 1) // later * later])
    mean, logvar = np.split(m.conv3d("conv1", h), 2, axis=1)
    logvar = m.add(logvar, m.store(-2 * np.log(of_channels(latents_std, logvar))))
    return to_denoiser(m, mean, latents_mean, latents_std), logvar


@block
def decode(m: Module, z, latents_mean, latents_std):
    """Decode a normalised latent to a video.

    z:      [N, Z, 1 + F, H, W], as the denoiser has it
    -> out: [N, 3, 1 + 4F, 8H, 8W], about -1..1, not clipped
    """
    return decoder(m["decoder"], m.conv3d("conv2", to_vae(m, z, latents_mean, latents_std)))


def to_denoiser(m: Module, z, latents_mean, latents_std):
    """Normalise each channel: (z - mean) / std. z [N, Z, ...] -> the same"""
    z = m.add(z, m.store(-of_channels(latents_mean, z)))
    return m.multiply(z, m.store(1 / of_channels(latents_std, z)))


def to_vae(m: Module, x, latents_mean, latents_std):
    """Undo `to_denoiser`: x std + mean. x [N, Z, ...] -> the same"""
    x = m.multiply(x, m.store(of_channels(latents_std, x)))
    return m.add(x, m.store(of_channels(latents_mean, x)))


def of_channels(values, x):
    """[Z] -> [Z, 1, ...], which broadcasts over the frames and pixels of x"""
    return np.asarray(values, np.float64).reshape(-1, *[1] * (x.ndim - 2))


def frames_per_latent(m: Module) -> int:
    """Return how many frames a latent frame holds, except the first: 2 for each halving of the encoder."""
    layers = m["downsamples"]
    return 2 ** sum("time_conv" in layers[i] for i in range(layers.count()))


@block
def encoder(m: Module, x):
    """[N, 3, 1 + 4F, H, W] -> [N, 2Z, 1 + F, floor(H/8), floor(W/8)]"""
    h = m.conv3d("conv1", x, padding=CAUSAL)
    for i in range(m.count("downsamples")):
        layer = m["downsamples"][i]
        h = res_block(layer, h) if "residual" in layer else downsample(layer, h)
    return head(m["head"], middle(m["middle"], h))


@block
def decoder(m: Module, z):
    """[N, Z, 1 + F, H, W] -> [N, 3, 1 + 4F, 8H, 8W]"""
    h = middle(m["middle"], m.conv3d("conv1", z, padding=CAUSAL))
    for i in range(m.count("upsamples")):
        layer = m["upsamples"][i]
        h = res_block(layer, h) if "residual" in layer else upsample(layer, h)
    return head(m["head"], h)


@block
def downsample(m: Module, x):
    """Halve the picture; with `time_conv` also the frames after the first.

    [N, C, 1 + F, H, W] -> [N, C, 1 + F or 1 + F/2, floor(H/2), floor(W/2)]
    """
    h = video(m.conv2d("resample.1", pictures(x), stride=2, padding=(0, 1, 0, 1)), len(x))
    if "time_conv" not in m or h.shape[2] == 1:
        return h
    pairs = m.conv3d("time_conv", h, stride=(2, 1, 1))
    return np.concatenate([h[:, :, :1], pairs], axis=2)


@block
def upsample(m: Module, x):
    """Double the picture and halve its channels; with `time_conv` double the frames after the first.

    [N, C, 1 + F, H, W] -> [N, C/2, 1 + F or 1 + 2F, 2H, 2W]
    """
    if "time_conv" in m and x.shape[2] > 1:
        pairs = m.conv3d("time_conv", x[:, :, 1:], padding=CAUSAL_IN_TIME)
        x = np.concatenate([x[:, :, :1], in_turn(pairs)], axis=2)
    return video(m.conv2d("resample.1", m.upsample_nearest(pictures(x)), padding=1), len(x))


def in_turn(pairs):
    """Take the two halves of the channels for two frames in turn. [N, 2C, F, H, W] -> [N, C, 2F, H, W]"""
    N, C, F, H, W = pairs.shape
    halves = pairs.reshape(N, 2, C // 2, F, H, W).transpose(0, 2, 3, 1, 4, 5)
    return halves.reshape(N, C // 2, 2 * F, H, W)


@block
def middle(m: Module, h):
    """[N, C, F, H, W] -> the same"""
    return res_block(m["2"], attention(m["1"], res_block(m["0"], h)))


@block
def head(m: Module, h):
    """[N, C, F, H, W] -> [N, K, F, H, W]"""
    return m.conv3d("2", m.rms_norm_channels_silu("0.gamma", h), padding=CAUSAL)


@block
def res_block(m: Module, x):
    """[N, C, F, H, W] -> [N, K, F, H, W]"""
    h = m.rms_norm_channels_silu("residual.0.gamma", x)
    h = m.conv3d("residual.2", h, padding=CAUSAL)
    h = m.rms_norm_channels_silu("residual.3.gamma", h)
    h = m.conv3d("residual.6", h, padding=CAUSAL)
    return m.add(h, m.conv3d("shortcut", x) if "shortcut" in m else x)


@block
def attention(m: Module, x):
    """Self-attention over the pixels of each frame, with one head. [N, C, F, H, W] -> the same"""
    return m.add(x, video(attended(m, pictures(x)), len(x)))


def attended(m: Module, x):
    """Return what attention adds to a picture. [N, C, H, W] -> the same"""
    N, C, H, W = x.shape
    qkv = m.conv2d("to_qkv", m.rms_norm_channels("norm.gamma", x))
    q, k, v = np.split(qkv.reshape(N, 3 * C, H * W).swapaxes(1, 2)[:, :, None], 3, axis=3)
    h = m.attention(q, k, v)[:, :, 0].swapaxes(1, 2).reshape(N, C, H, W)
    return m.conv2d("proj", h)


def pictures(x):
    """Take the frames for items of a batch. [N, C, F, H, W] -> [N F, C, H, W]"""
    N, C, F, H, W = x.shape
    return x.swapaxes(1, 2).reshape(N * F, C, H, W)


def video(x, N):
    """Undo `pictures`. [N F, C, H, W] -> [N, C, F, H, W]"""
    return x.reshape(N, len(x) // N, *x.shape[1:]).swapaxes(1, 2)
