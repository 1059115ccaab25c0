"""The autoencoders of Wan and Qwen-Image: pictures and videos, with convolutions over frames that see no later one.

Wan-Video/Wan2.1, wan/modules/vae.py, which is Qwen-Image's too; key names as there: `conv1` and `conv2` at the root
are the 1x1 convolutions that Stable Diffusion calls quant_conv and post_quant_conv, `head` is a norm, SiLU and a
convolution.

A picture is a video of one frame. The first latent frame holds the first frame alone, each later one four frames.
The original runs four frames at a time and keeps the last two inputs of every convolution; here a convolution
runs over all frames at once, with two frames of zeros before the first, which is the same sum. Only the layers
that change the number of frames treat the first frame apart: it never enters `time_conv` of an upsampling, not even
as the past of the second frame.

Wan 2.2's autoencoder (wan/modules/vae2_2.py; TI2V-5B has it, A14B has Wan 2.1's) takes 2x2 squares of pixels as
channels. Each of its levels is a group of these layers. The shortcut around a level has no weights: it averages
boxes of pixels on the way down and repeats channels on the way up.
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
    return posterior(m, encoder(m["encoder"], whole_latents(m, x)), latents_mean, latents_std)


@block
def decode(m: Module, z, latents_mean, latents_std):
    """Decode a normalised latent to a video.

    z:      [N, Z, 1 + F, H, W], as the denoiser has it
    -> out: [N, 3, 1 + 4F, 8H, 8W], about -1..1, not clipped
    """
    return decoder(m["decoder"], m.conv3d("conv2", to_vae(m, z, latents_mean, latents_std)))


@block
def encode_wan22(m: Module, x, latents_mean, latents_std):
    """Encode a video by Wan 2.2's autoencoder to the posterior of its latent, each channel normalised.

    x:         [N, 3, 1 + 4F, H, W], -1..1, H and W multiples of 16; frames beyond the last whole four are left out
    -> mean:   [N, Z, 1 + F, H/16, W/16], the denoiser's input
       logvar: the same shape, of the normalised latent; clip it to -30..20 before sampling

    latents_mean, latents_std: [Z], statistics of the posterior's means
    """
    h = encoder(m["encoder"], to_squares(whole_latents(m, x)))
    return posterior(m, h, latents_mean, latents_std)


@block
def decode_wan22(m: Module, z, latents_mean, latents_std):
    """Decode a normalised latent by Wan 2.2's autoencoder to a video.

    z:      [N, Z, 1 + F, H, W], as the denoiser has it
    -> out: [N, 3, 1 + 4F, 16H, 16W], about -1..1, not clipped
    """
    h = decoder(m["decoder"], m.conv3d("conv2", to_vae(m, z, latents_mean, latents_std)))
    return to_pixels(h)


def posterior(m: Module, h, latents_mean, latents_std):
    """Return the mean, normalised, and the log of the variance. h [N, 2Z, F, H, W] -> two of [N, Z, F, H, W]"""
    mean, logvar = np.split(m.conv3d("conv1", h), 2, axis=1)
    logvar = m.add(logvar, m.store(-2 * np.log(of_channels(latents_std, logvar))))
    return to_denoiser(m, mean, latents_mean, latents_std), logvar


def to_squares(x):
    """Take 2x2 squares of pixels for channels, columns outside rows. [N, C, F, H, W] -> [N, 4C, F, H/2, W/2]"""
    N, C, F, H, W = x.shape
    squares = x.reshape(N, C, F, H // 2, 2, W // 2, 2).transpose(0, 1, 6, 4, 2, 3, 5)
    return squares.reshape(N, 4 * C, F, H // 2, W // 2)


def to_pixels(x):
    """Undo `to_squares`. [N, 4C, F, H, W] -> [N, C, F, 2H, 2W]"""
    N, C, F, H, W = x.shape
    pixels = x.reshape(N, C // 4, 2, 2, F, H, W).transpose(0, 1, 4, 5, 3, 6, 2)
    return pixels.reshape(N, C // 4, F, 2 * H, 2 * W)


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


def whole_latents(m: Module, x):
    """Leave out the frames that do not fill a latent frame; each halving of the encoder joins two of them."""
    encoder = f"{m.prefix}encoder."
    later = 2 ** sum(name.startswith(encoder) and name.endswith(".time_conv.weight") for name in m.weights)
    return x[:, :, : 1 + (x.shape[2] - 1) // later * later]


@block
def encoder(m: Module, x):
    """[N, 3, 1 + 4F, H, W] -> [N, 2Z, 1 + F, floor(H/8), floor(W/8)]"""
    h = down_layers(m["downsamples"], m.conv3d("conv1", x, padding=CAUSAL))
    return head(m["head"], middle(m["middle"], h))


@block
def decoder(m: Module, z):
    """[N, Z, 1 + F, H, W] -> [N, 3, 1 + 4F, 8H, 8W]"""
    h = up_layers(m["upsamples"], middle(m["middle"], m.conv3d("conv1", z, padding=CAUSAL)))
    return head(m["head"], h)


def down_layers(m: Module, h):
    """Residual blocks and downsamplings in turn, or Wan 2.2's groups of these."""
    for i in range(m.count()):
        layer = m[i]
        run = down_block if "downsamples" in layer else res_block if "residual" in layer else downsample
        h = run(layer, h)
    return h


def up_layers(m: Module, h):
    """Residual blocks and upsamplings in turn, or Wan 2.2's groups of these."""
    for i in range(m.count()):
        layer = m[i]
        run = up_block if "upsamples" in layer else res_block if "residual" in layer else upsample
        h = run(layer, h)
    return h


@block
def down_block(m: Module, x):
    """[N, C, 1 + F, H, W] -> [N, K, 1 + F or 1 + F/2, H/2, W/2]; the last one keeps the size"""
    h = down_layers(m["downsamples"], x)
    frames, side = factors(m["downsamples"])
    return m.add(h, m.apply(averaged, x, frames=frames, side=side, outputs=h.shape[1]))


@block
def up_block(m: Module, x):
    """[N, C, 1 + F, H, W] -> [N, K, 1 + F or 1 + 2F, 2H, 2W]; the last one keeps the size and has no shortcut"""
    h = up_layers(m["upsamples"], x)
    frames, side = factors(m["upsamples"])
    return m.add(h, repeated(x, frames=frames, side=side, outputs=h.shape[1])) if side > 1 else h


def factors(m: Module) -> tuple[int, int]:
    """Return by how much a group's last layer changes the number of frames, and each side of the picture."""
    last = m[m.count() - 1]
    return (2 if "time_conv" in last else 1), (2 if "resample" in last else 1)


def averaged(x, frames: int, side: int, outputs: int):
    """Average groups of channels, frames and pixels. Where frames are halved, an empty one stands before the first.

    A group holds outputs' share of (channel, frame, row, column) in that order.
    [N, C, F, H, W] -> [N, outputs, ceil(F/frames), H/side, W/side]
    """
    x = after_empty_frames(x, -x.shape[2] % frames)
    N, C, F, H, W = x.shape
    boxes = x.reshape(N, C, F // frames, frames, H // side, side, W // side, side).transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return np.mean(boxes.reshape(N, outputs, -1, F // frames, H // side, W // side), axis=2)


def after_empty_frames(x, number: int):
    """Put frames of zeros before the first. [N, C, F, H, W] -> [N, C, number + F, H, W]"""
    return np.concatenate([*[np.zeros_like(x[:, :, :1])] * number, x], axis=2)


def repeated(x, frames: int, side: int, outputs: int):
    """Undo `averaged` as far as can be: repeat channels for each frame and pixel; the first frame stays one.

    [N, C, F, H, W] -> [N, outputs, frames F - (frames - 1), side H, side W]
    """
    N, C, F, H, W = x.shape
    boxes = each_channel(x, outputs * frames * side * side // C).reshape(N, outputs, frames, side, side, F, H, W)
    video = boxes.transpose(0, 1, 5, 2, 6, 3, 7, 4).reshape(N, outputs, F * frames, side * H, side * W)
    return without_first(video, frames - 1)


def each_channel(x, times: int):
    """Repeat each channel. [N, C, F, H, W] -> [N, times C, F, H, W]"""
    return np.repeat(x, times, axis=1)


def without_first(video, number: int):
    """[N, C, F, H, W] -> [N, C, F - number, H, W]"""
    return video[:, :, number:]


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
    """Double the picture; with `time_conv` double the frames after the first.

    [N, C, 1 + F, H, W] -> [N, C/2, 1 + F or 1 + 2F, 2H, 2W]; C channels in Wan 2.2's
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
