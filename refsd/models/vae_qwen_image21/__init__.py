"""Qwen-Image 2.1's autoencoder: pictures with alpha to 64 channels at a sixteenth of the size.

diffusers, autoencoder_kl_qwenimage21.py; key names as there. It is Wan 2.2's autoencoder of videos, cut down to one
frame: convolutions are of two dimensions, and each level has a shortcut without weights around its residual blocks,
which averages squares of pixels on the way down and repeats channels on the way up.

What is left of time: where Wan halves the frames, the shortcut averages a picture with an empty frame before it, so
half of what goes into its averages is zeros. `time_conv` is in the files, and no picture passes it.
"""

import numpy as np

from refsd.models.vae_wan import attended, of_channels, to_denoiser, to_vae
from refsd.module import Module, block


@block
def encode(m: Module, x, latents_mean, latents_std):
    """Encode a picture to the posterior of its latent, each channel normalised.

    x:         [N, 4, H, W], red, green, blue and alpha, -1..1, H and W multiples of 16
    -> mean:   [N, Z, H/16, W/16], the denoiser's input
       logvar: the same shape, of the normalised latent; clip it to -30..20 before sampling

    latents_mean, latents_std: [Z], statistics of the posterior's means
    """
    mean, logvar = np.split(m.conv2d("quant_conv", encoder(m["encoder"], x)), 2, axis=1)
    logvar = m.add(logvar, m.store(-2 * np.log(of_channels(latents_std, logvar))))
    return to_denoiser(m, mean, latents_mean, latents_std), logvar


@block
def decode(m: Module, z, latents_mean, latents_std):
    """Decode a normalised latent to a picture with alpha.

    z:      [N, Z, H, W], as the denoiser has it
    -> out: [N, 4, 16H, 16W], about -1..1, not clipped
    """
    return decoder(m["decoder"], m.conv2d("post_quant_conv", to_vae(m, z, latents_mean, latents_std)))


@block
def encoder(m: Module, x):
    """[N, 4, H, W] -> [N, 2Z, H/16, W/16]"""
    h = m.conv2d("conv_in", x, padding=1)
    for i in range(m.count("down_blocks")):
        h = down_block(m["down_blocks"][i], h)
    return head(m, middle(m["mid_block"], h))


@block
def decoder(m: Module, z):
    """[N, Z, H, W] -> [N, 4, 16H, 16W]"""
    h = middle(m["mid_block"], m.conv2d("conv_in", z, padding=1))
    for i in range(m.count("up_blocks")):
        h = up_block(m["up_blocks"][i], h)
    return head(m, h)


@block
def down_block(m: Module, x):
    """[N, C, H, W] -> [N, K, H/2, W/2]; the last one keeps the size"""
    h = res_blocks(m["resnets"], x)
    if "downsampler" in m:
        h = m.conv2d("downsampler.resample.1", h, stride=2, padding=(0, 1, 0, 1))
    frames, side = factors(m, "downsampler")
    return m.add(h, m.apply(averaged, x, frames=frames, side=side, outputs=h.shape[1]))


@block
def up_block(m: Module, x):
    """[N, C, H, W] -> [N, K, 2H, 2W]; the last one keeps the size and has no shortcut"""
    h = res_blocks(m["resnets"], x)
    if "upsampler" not in m:
        return h
    h = m.conv2d("upsampler.resample.1", m.upsample_nearest(h), padding=1)
    frames, side = factors(m, "upsampler")
    return m.add(h, repeated(x, frames=frames, side=side, outputs=h.shape[1]))


def factors(m: Module, sampling: str) -> tuple[int, int]:
    """Return by how much a level changes the number of frames, and each side of the picture."""
    return (2 if "time_conv" in m[sampling] else 1), (2 if sampling in m else 1)


def averaged(x, frames: int, side: int, outputs: int):
    """Average groups of channels, frames and pixels; all frames but the last are zeros.

    A group holds outputs' share of (channel, frame, row, column) in that order.
    [N, C, H, W] -> [N, outputs, H/side, W/side]
    """
    N, C, H, W = x.shape
    squares = x.reshape(N, C, H // side, side, W // side, side).transpose(0, 1, 3, 5, 2, 4)
    video = after_empty_frames(squares.reshape(N, C, side * side, H // side, W // side), frames)
    return np.mean(video.reshape(N, outputs, -1, H // side, W // side), axis=2)


def after_empty_frames(squares, frames: int):
    """Put the picture's squares after the squares of empty frames. [N, C, S, H, W] -> [N, C, frames S, H, W]"""
    return np.concatenate([*[np.zeros_like(squares)] * (frames - 1), squares], axis=2)


def repeated(x, frames: int, side: int, outputs: int):
    """Undo `averaged` as far as can be: repeat channels for each frame and pixel, and keep the last frame.

    [N, C, H, W] -> [N, outputs, side H, side W]
    """
    N, C, H, W = x.shape
    video = each_channel(x, outputs * frames * side * side // C)
    picture = last_frame(video.reshape(N, outputs, frames, side, side, H, W))
    return picture.transpose(0, 1, 4, 2, 5, 3).reshape(N, outputs, side * H, side * W)


def each_channel(x, times: int):
    """Repeat each channel. [N, C, H, W] -> [N, times C, H, W]"""
    return np.repeat(x, times, axis=1)


def last_frame(video):
    """[N, C, F, ...] -> [N, C, ...]"""
    return video[:, :, -1]


@block
def middle(m: Module, h):
    """[N, C, H, W] -> the same"""
    h = attention(m["attentions.0"], res_block(m["resnets.0"], h))
    return res_block(m["resnets.1"], h)


@block
def attention(m: Module, x):
    """Self-attention over the pixels, with one head. [N, C, H, W] -> the same"""
    return m.add(x, attended(m, x))


def head(m: Module, h):
    """[N, C, H, W] -> [N, K, H, W]"""
    return m.conv2d("conv_out", m.rms_norm_channels_silu("norm_out.gamma", h), padding=1)


def res_blocks(m: Module, h):
    """[N, C, H, W] -> [N, K, H, W]"""
    for i in range(m.count()):
        h = res_block(m[i], h)
    return h


@block
def res_block(m: Module, x):
    """[N, C, H, W] -> [N, K, H, W]"""
    h = m.conv2d("conv1", m.rms_norm_channels_silu("norm1.gamma", x), padding=1)
    h = m.conv2d("conv2", m.rms_norm_channels_silu("norm2.gamma", h), padding=1)
    return m.add(h, m.conv2d("conv_shortcut", x) if "conv_shortcut" in m else x)
