"""LTX-2's video autoencoder: 4x4 patches, convolutions over frames, and shortcuts without weights.

Key names are those of Lightricks' files. A latent of 128 channels stands for 32x32 pixels and eight frames; the
first latent stands for one frame. Between its residual blocks the encoder halves frames, sides or both: a
convolution to few channels, whose values of two frames, of 2x2 pixels or of both become channels of one.

A convolution repeats the first frame before the video: twice, if it sees no later frame, as in the encoder. The
decoder's sees one frame on each side, and repeats the last frame, too. Norms have no weights.

LTX-2.3's decoder has one step more, zeros around frames where LTX-2's has their mirror image, and no shortcuts.
LTX-Video's, from 0.9.5 on, is LTX-2's with zeros around frames, and is told how much noise the latent has.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from refsd.models.vae_minimax_h3 import mirrored
from refsd.models.vae_wan import averaged, of_channels, to_denoiser, to_vae, without_first
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

PATCH = 4  # pixels of a side that are channels of one
# Values that become one's channels -> (frames, pixels of a side) that they are from.
STEPS = {2: (2, 1), 4: (1, 2), 8: (2, 2)}
NORM_EPS = 1e-8
TIME_CHANNELS = 256
STATISTICS = "per_channel_statistics.mean-of-means", "per_channel_statistics.std-of-means"


class Edges(NamedTuple):
    """What convolutions see beyond a video.

    causal:  True if they see no later frame
    mirrors: True if frames are mirrored at their edges; else zeros are around them
    """

    causal: bool
    mirrors: bool


class Modulation(NamedTuple):
    """Shift and scale of the channels, [N, C] each."""

    shift: np.ndarray
    scale: np.ndarray


@block
def encode(m: Module, x, encoder_causal=True, encoder_mirrors=False):
    """Encode a picture or a video to the posterior of its latent, each channel normalised.

    x:         [N, 3, 1 + 8F, H, W], -1..1, H and W multiples of 32
    -> mean:   [N, Z, 1 + F, H/32, W/32], the denoiser's input
       logvar: the same shape, of the normalised latent; clip it to -30..20 before sampling

    encoder_causal, encoder_mirrors: what convolutions see beyond the video
    Source: diffusers autoencoder_kl_ltx2.py.
    """
    h = encoder(m["encoder"], to_patches(x), Edges(encoder_causal, encoder_mirrors))
    mean, logvar = np.split(h, [h.shape[1] - 1], axis=1)
    of_mean, std = statistics(m)
    logvar = m.add(of_every_channel(logvar, mean.shape[1]), m.store(-2 * np.log(of_channels(std, mean))))
    return to_denoiser(m, mean, of_mean, std), logvar


@block
def decode(m: Module, z, timesteps=None, decoder_causal=False, decoder_mirrors=True, shortcuts=True):
    """Decode a normalised latent to a picture or a video.

    z:         [N, Z, 1 + F, H, W], as the denoiser has it
    timesteps: [N], the latent's noise level, 0..1, where the weights ask for it
    -> out:    [N, 3, 1 + 8F, 32H, 32W], about -1..1, not clipped

    decoder_causal, decoder_mirrors: what convolutions see beyond the video
    shortcuts: True if each step has one around it
    Source: diffusers autoencoder_kl_ltx2.py, and autoencoder_kl_ltx.py, which computes the same for LTX-Video.
    """
    z = to_vae(m, z, *statistics(m))
    edges = Edges(decoder_causal, decoder_mirrors)
    return to_pixels(decoder(m["decoder"], z, timesteps, edges, shortcuts))


def statistics(m: Module):
    """Return mean and deviation of the latent's channels, [Z] each. Raises BadInput for a deviation not above 0."""
    mean, std = (np.asarray(m.weight(name)) for name in STATISTICS)
    if not (std > 0).all():
        raise BadInput(
            f'"{m.prefix}{STATISTICS[1]}" holds {std.min():.3g}: a deviation is above 0; the file is damaged'
        )
    return mean, std


def of_every_channel(logvar, Z):
    """Take the one channel for all. [N, 1, F, H, W] -> [N, Z, F, H, W]"""
    return np.repeat(logvar, Z, axis=1)


def to_patches(x):
    """Take 4x4 pixels for channels, columns outside rows. [N, C, F, H, W] -> [N, 16C, F, H/4, W/4]"""
    N, C, F, H, W = x.shape
    patches = x.reshape(N, C, F, H // PATCH, PATCH, W // PATCH, PATCH).transpose(0, 1, 6, 4, 2, 3, 5)
    return patches.reshape(N, C * PATCH**2, F, H // PATCH, W // PATCH)


def to_pixels(x):
    """Undo `to_patches`. [N, 16C, F, H, W] -> [N, C, F, 4H, 4W]"""
    N, C, F, H, W = x.shape
    pixels = x.reshape(N, C // PATCH**2, PATCH, PATCH, F, H, W).transpose(0, 1, 4, 5, 3, 6, 2)
    return pixels.reshape(N, C // PATCH**2, F, H * PATCH, W * PATCH)


@block
def encoder(m: Module, x, edges: Edges):
    """[N, 48, 1 + 8F, H, W] -> [N, Z + 1, 1 + F, H/8, W/8]"""
    h = conv(m["conv_in"], x, edges)
    levels = m["down_blocks"]
    for i in range(0, levels.count(), 2):
        h = downsample(levels[i - 1], h, width(levels[i]), edges) if i else h
        h = res_blocks(levels[i], h, None, edges)
    return conv(m["conv_out"], norm_silu(m, h), edges)


@block
def decoder(m: Module, z, timesteps, edges: Edges, shortcuts):
    """[N, Z, 1 + F, H, W] -> [N, 48, 1 + 8F, 8H, 8W]"""
    t = scaled_time(m, timesteps)
    h = conv(m["conv_in"], z, edges)
    levels = m["up_blocks"]
    for i in range(0, levels.count(), 2):
        h = upsample(levels[i - 1], h, width(levels[i]), edges, shortcuts) if i else h
        h = res_blocks(levels[i], h, t, edges)
    last, *_ = modulations(m, "last_scale_shift_table", time_embedding(m["last_time_embedder"], t))
    return conv(m["conv_out"], norm_silu(m, h, last), edges)


def scaled_time(m: Module, timesteps):
    """Return the noise level as it is embedded, [N]; None if the weights do not ask for it."""
    return None if timesteps is None else timesteps * float(np.asarray(m.weight("timestep_scale_multiplier")))


def time_embedding(m: Module, t):
    """Embed the noise level. t [N] -> [N, E]; None stays None"""
    if t is None:
        return None
    m = m["timestep_embedder"]
    return m.linear("linear_2", m.silu(m.linear("linear_1", m.timestep_embedding(t, TIME_CHANNELS))))


def modulations(m: Module, table, time) -> tuple[Modulation | None, ...]:
    """Return the modulations of a block: a row of its table for each shift and scale, to which the time's is added.

    time: [N, rows C], or None: nothing is modulated
    """
    if time is None:
        return None, None
    rows = m.weight(table)
    both = m.add(time.reshape(len(time), *rows.shape), rows)
    return tuple(Modulation(both[:, i], both[:, i + 1]) for i in range(0, rows.shape[0], 2))


def width(m: Module) -> int:
    """Return the channels of residual blocks."""
    return m.shape("res_blocks.0.conv1.conv.weight")[1]


@block
def res_blocks(m: Module, h, t, edges: Edges):
    """Residual blocks of one width. [N, C, F, H, W] -> the same"""
    time = time_embedding(m["time_embedder"], t)
    for i in range(m.count("res_blocks")):
        h = res_block(m["res_blocks"][i], h, time, edges)
    return h


@block
def res_block(m: Module, x, time, edges: Edges):
    """x [N, C, F, H, W], time [N, 4C] or None -> [N, C, F, H, W]"""
    first, second = modulations(m, "scale_shift_table", time)
    h = conv(m["conv1"], norm_silu(m, x, first), edges)
    h = conv(m["conv2"], norm_silu(m, h, second), edges)
    return m.add(h, x)


def norm_silu(m: Module, x, modulation: Modulation | None = None):
    """Normalise the channels of each pixel, modulate them, then SiLU. [N, C, F, H, W] -> the same"""
    N, C = x.shape[:2]
    h = m.rms_norm(None, np.copy(x.reshape(N, C, -1).swapaxes(1, 2), order="C"), NORM_EPS)
    if modulation is not None:
        h = m.modulate(h, modulation.shift, modulation.scale)
    return np.copy(m.silu(h).swapaxes(1, 2), order="C").reshape(x.shape)


@block
def downsample(m: Module, x, outputs, edges: Edges):
    """Halve frames, sides or both; the shortcut averages groups of the values that become channels.

    [N, C, F, H, W] -> [N, outputs, ceil(F/frames), H/side, W/side]
    """
    frames, side = STEPS[outputs // m.shape("conv.conv.weight")[0]]
    x = after_first_again(x, frames - 1)
    h = folded(conv(m["conv"], x, edges), frames, side)
    return m.add(h, m.apply(averaged, x, frames=frames, side=side, outputs=outputs))


@block
def upsample(m: Module, x, outputs, edges: Edges, shortcuts):
    """Double frames, sides or both: undo `downsample`. The shortcut unfolds x itself, and repeats its channels.

    [N, C, F, H, W] -> [N, outputs, frames F - (frames - 1), side H, side W]
    """
    frames, side = STEPS[m.shape("conv.conv.weight")[0] // outputs]
    unfold = partial(unfolded, frames=frames, side=side)
    h = unfold(conv(m["conv"], x, edges))
    return m.add(h, in_turn(unfold(x), outputs)) if shortcuts else h


def after_first_again(x, number: int):
    """Repeat the first frame before a video. [N, C, F, H, W] -> [N, C, number + F, H, W]"""
    return np.concatenate([*[x[:, :, :1]] * number, x], axis=2)


def folded(x, frames: int, side: int):
    """Take frames and pixels for channels. [N, C, F, H, W] -> [N, frames side side C, F/frames, H/side, W/side]"""
    N, C, F, H, W = x.shape
    boxes = x.reshape(N, C, F // frames, frames, H // side, side, W // side, side).transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return boxes.reshape(N, C * frames * side * side, F // frames, H // side, W // side)


def unfolded(x, frames: int, side: int):
    """Undo `folded`, and leave out what stands before the first frame."""
    N, C, F, H, W = x.shape
    C //= frames * side * side
    boxes = x.reshape(N, C, frames, side, side, F, H, W).transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return without_first(boxes.reshape(N, C, F * frames, H * side, W * side), frames - 1)


def in_turn(x, outputs: int):
    """Repeat all channels in turn. [N, C, F, H, W] -> [N, outputs, F, H, W]"""
    return np.concatenate([x] * (outputs // x.shape[1]), axis=1)


def conv(m: Module, x, edges: Edges):
    """Convolve over 3 frames and 3x3 pixels. [N, C, F, H, W] -> [N, K, F, H, W]

    Raises BadInput if a side of one is to be mirrored.
    """
    x = with_frames_around(x, edges.causal)
    if edges.mirrors:
        if min(x.shape[3:]) < 2:
            raise BadInput(f"frames of {x.shape[3]} x {x.shape[4]} have no mirror image: expected 2 x 2 or more")
        return m.conv3d("conv", mirrored(mirrored(x, 3, 1, 1), 4, 1, 1))
    return m.conv3d("conv", x, padding=(0, 0, 1, 1, 1, 1))


def with_frames_around(x, causal: bool):
    """Repeat the first frame twice before a video, or once and the last behind it. -> two frames more"""
    return after_first_again(x, 2) if causal else np.concatenate([x[:, :, :1], x, x[:, :, -1:]], axis=2)
