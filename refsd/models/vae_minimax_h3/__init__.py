"""MiniMax-H3's video autoencoder: convolutions to latents, and a transformer back to pixels.

Key names are those of MiniMax's and ComfyUI's files. A latent of 24 channels stands for 16x16 pixels. The encoder
takes 17 frames at a time and makes five latents of them: one of the first frame, four of four frames each. After
the last clip three latents are dropped, so that 17 n + 5 frames have 5 n + 2 latents. The decoder takes seven
latents at a time, five and the two that follow, and fades the five frames that two clips share into each other.

Both halves run on tiles of 256x256 pixels. Without them the answer is another: the decoder's positions are shares
of its tile, and it was trained on such tiles.
"""

from functools import partial

import numpy as np

from refsd.models.vae_minimax_h3.tiles import stitched, tiles
from refsd.models.vae_wan import of_channels, pictures, to_denoiser, to_vae, video
from refsd.module import Module, block

CLIP = 17  # frames that are encoded at a time
DROP = 3  # latents that are dropped at the end
FRAMES = 4  # that a latent stands for; the first latent of a clip stands for one
CLIP_LATENTS = -(-CLIP // FRAMES)
SHARED_LATENTS = -DROP % CLIP_LATENTS  # of two clips that are decoded
PAD = -CLIP % FRAMES  # frames before a clip's first, which the decoder makes and which are left out
SHARED_FRAMES = SHARED_LATENTS * FRAMES - PAD
SIDE = 16  # pixels of a latent
HALVES = 1, 2  # the levels of the encoder whose downsampling also halves the frames
TILE, OVERLAP = 256, 64  # pixels of a side, and the least that two tiles share

HEAD_DIM = 64
AXES_DIM = 16, 16, 16  # rotary channels of a head for the axes time, row, column; the other 16 are not rotated
THETA = 100.0
NORM_EPS, DECODER_EPS = 1e-6, 1e-5

# ImageNet's mean and deviation of red, green and blue, of pixels 0..1.
PIXEL_MEAN = 0.485, 0.456, 0.406
PIXEL_STD = 0.229, 0.224, 0.225
# Padding (front, back, top, bottom, left, right) of a convolution over frames whose pixels are padded already.
EARLIER = 2, 0, 0, 0, 0, 0


@block
def encode(m: Module, x, latents_mean, latents_std, tile=TILE, overlap=OVERLAP, eps=NORM_EPS):
    """Encode a picture or a video to the posterior of its latent, each channel normalised.

    x:         [N, 3, F, H, W], -1..1, H and W multiples of 16, at least 32
    -> mean:   [N, Z, f, H/16, W/16], the denoiser's input; f = 1 for a picture, else 5 ceil(F/17) - 3
       logvar: the same shape, of the normalised latent; clip it to -30..20 before sampling

    latents_mean, latents_std: [Z], statistics of the posterior's means
    tile:      pixels of a tile's side; overlap: the least that two tiles share. eps: of the norms
    Source: diffusers autoencoder_kl_minimax_h3.py.
    """
    one_clip = partial(moments, m, eps=eps)
    x = to_imagenet(m, x)
    clips = [in_tiles(m, one_clip, clip, tile, overlap, 1, SIDE) for clip in clips_of(x)]
    h = without_tail(np.concatenate(clips, axis=2))
    mean, logvar = np.split(h, 2, axis=1)
    logvar = m.add(logvar, m.store(-2 * np.log(of_channels(latents_std, logvar))))
    return to_denoiser(m, mean, latents_mean, latents_std), logvar


@block
def decode(
    m: Module, z, latents_mean, latents_std, tile=TILE, overlap=OVERLAP, theta=THETA, decoder_eps=DECODER_EPS
):
    """Decode a normalised latent to a picture or a video.

    z:      [N, Z, F, H, W], as the denoiser has it
    -> out: [N, 3, f, 16H, 16W], about -1..1, not clipped; f = 1, 5, 9, 13, 17, 18, 22, ... for F = 1, 2, 3, ...

    latents_mean, latents_std: [Z], statistics of the latent
    tile:   pixels of a tile's side; overlap: the least that two tiles share. theta, decoder_eps: of the transformer
    A single latent is decoded alone, and the last of its four frames is the picture. diffusers has no rule for it,
    nor for two, which are decoded as more are: stable-diffusion.cpp does both so.
    Source: diffusers autoencoder_kl_minimax_h3.py; MiniMax's klvae.py (in sglang), decode_temporal and decode_base.
    """
    one_clip = partial(pixels, m, theta=theta, eps=decoder_eps)
    z = to_vae(m, z, latents_mean, latents_std)
    clips = [in_tiles(m, one_clip, clip, tile, overlap, SIDE, 1) for clip in latent_clips(z)]
    x = picture_of(clips[0]) if z.shape[2] == 1 else joined(m, clips)[:, :, : frames_of(z.shape[2])]
    return from_imagenet(m, x)


def to_imagenet(m: Module, x):
    """Normalise pixels -1..1 by ImageNet's mean and deviation. [N, 3, F, H, W] -> the same"""
    return to_denoiser(m, x, 2 * np.array(PIXEL_MEAN) - 1, 2 * np.array(PIXEL_STD))


def from_imagenet(m: Module, x):
    """Undo `to_imagenet`."""
    return to_vae(m, x, 2 * np.array(PIXEL_MEAN) - 1, 2 * np.array(PIXEL_STD))


def clips_of(x):
    """Cut a video into clips of 17 frames, the last filled with the last frame. A picture stays one frame."""
    F = x.shape[2]
    more = 0 if F == 1 else -F % CLIP
    x = np.concatenate([x, *[x[:, :, -1:]] * more], axis=2)
    return [x[:, :, i : i + CLIP] for i in range(0, x.shape[2], CLIP)]


def without_tail(h):
    """Drop the last three latents of a video. [N, C, F, H, W] -> [N, C, F - 3, H, W]"""
    return h if h.shape[2] == 1 else h[:, :, :-DROP]


def latent_clips(z):
    """Cut latents into clips of five and the two that follow; the last latent is repeated to fill the last clip."""
    F = z.shape[2]
    if F == 1:
        return [z]
    n = max(1, -(-(F + DROP) // CLIP_LATENTS) - 1)
    more = n * CLIP_LATENTS + SHARED_LATENTS - F
    z = np.concatenate([z, *[z[:, :, -1:]] * more], axis=2)
    return [z[:, :, i * CLIP_LATENTS :][:, :, : CLIP_LATENTS + SHARED_LATENTS] for i in range(n)]


def picture_of(clip):
    """Return the last frame of those that a single latent makes: the one that the encoder saw."""
    return clip[:, :, -1:]


def joined(m: Module, clips):
    """Join decoded clips of 28 frames: 17 of each, the first five faded in, and the last clip's other five."""
    halves = [np.split(clip, [CLIP_LATENTS * FRAMES], axis=2) for clip in clips]
    own, after = ([half[:, :, PAD:] for half in which] for which in zip(*halves, strict=True))
    parts = [faded(m, before, clip, SHARED_FRAMES, 2) for before, clip in zip(after, own[1:], strict=False)]
    return np.concatenate([own[0], *parts, after[-1]], axis=2)


def frames_of(F):
    """Return the number of frames that F latents stand for: the first of each five for one, the others for four."""
    firsts = -(-F // CLIP_LATENTS)
    return firsts + FRAMES * (F - firsts)


def in_tiles(m: Module, run, x, tile, overlap, up, down):
    """Run on tiles of the frames, and fade neighbours into each other.

    run:       [N, C, F, h, w] -> [N, K, f, h up/down, w up/down]
    tile, overlap: in pixels
    up, down:  how much larger or smaller the result is; x is latents if up > 1
    """
    rows, columns = (tiles(n * up, tile, overlap, SIDE) for n in x.shape[3:])
    parts = [
        [run(x[:, :, :, top // up : bottom // up, left // up : right // up]) for left, right in columns.places]
        for top, bottom in rows.places
    ]
    down_shared, across_shared = ([n // down for n in of.overlaps] for of in (rows, columns))
    return stitched(parts, down_shared, across_shared, partial(faded, m))


def faded(m: Module, a, b, extent, axis):
    """Fade the end of a into the beginning of b: 1, 1 - 1/extent, ... of a, and the rest of b. -> the size of b"""
    share = np.arange(extent).reshape(-1, *[1] * (b.ndim - axis - 1)) / extent
    _, end = np.split(a, [a.shape[axis] - extent], axis=axis)
    begin, rest = np.split(b, [extent], axis=axis)
    mixed = m.add(m.multiply(end, m.store(1 - share)), m.multiply(begin, m.store(share)))
    return np.concatenate([mixed, rest], axis=axis)


def moments(m: Module, x, eps):
    """Encode a clip to the mean and the log of the variance. [N, 3, F, H, W] -> [N, 2Z, f, H/16, W/16]"""
    return m.conv3d("quant_conv", encoder(m["encoder"], x, eps))


@block
def encoder(m: Module, x, eps):
    """[N, 3, F, H, W] -> [N, 2Z, f, H/16, W/16]"""
    h = conv(m, "conv_in", x)
    for level in range(m.count("down")):
        h = down_block(m["down"][level], h, eps, 2 if level in HALVES else 1)
    return conv(m, "conv_out", norm_silu(m, "norm_out", h, eps))


@block
def down_block(m: Module, h, eps, frames):
    """Residual blocks, then a convolution that halves the sides and, if frames is 2, the frames.

    [N, C, F, H, W] -> [N, K, ceil(F/frames), H/2, W/2]; the last ones keep the size
    """
    for i in range(m.count("block")):
        h = res_block(m["block"][i], h, eps)
    return downsample(m, h, frames) if "downsample" in m else h


@block
def res_block(m: Module, x, eps):
    """[N, C, F, H, W] -> [N, K, F, H, W]"""
    h = conv(m, "conv1", norm_silu(m, "norm1", x, eps))
    h = conv(m, "conv2", norm_silu(m, "norm2", h, eps))
    return m.add(m.conv3d("nin_shortcut", x) if "nin_shortcut" in m else x, h)


def downsample(m: Module, h, frames):
    """[N, C, F, H, W] -> [N, C, ceil(F/frames), H/2, W/2]"""
    h = mirrored(mirrored(h, 3, 0, 1), 4, 0, 1)
    return m.conv3d("downsample.conv", h, stride=(frames, 2, 2), padding=EARLIER)


def conv(m: Module, name, x):
    """Convolve over 3x3 pixels of a frame and of the two before it. [N, C, F, H, W] -> [N, K, F, H, W]"""
    return m.conv3d(name, mirrored(mirrored(x, 3, 1, 1), 4, 1, 1), padding=EARLIER)


def mirrored(x, axis, before, after):
    """Pad an axis by one at its beginning, its end or both; the edge itself is not repeated."""
    x = x.swapaxes(0, axis)
    x = np.concatenate([*[x[1:2]] * before, x, *[x[-2:-1]] * after])
    return x.swapaxes(0, axis)


def norm_silu(m: Module, name, x, eps):
    """Normalise groups of channels of each frame alone. [N, C, F, H, W] -> the same"""
    return video(m.group_norm_silu(name, pictures(x), eps=eps), len(x))


def pixels(m: Module, z, theta, eps):
    """Decode a clip. [N, Z, F, H, W] -> [N, 3, 4F, 16H, 16W]"""
    return decoder(m["decoder"], m.conv3d("post_quant_conv", z), theta, eps)


@block
def decoder(m: Module, z, theta, eps):
    """A transformer; each latent is a token and sees all others. [N, Z, F, H, W] -> [N, 3, 4F, 16H, 16W]"""
    N, Z, F, H, W = z.shape
    tokens = m.linear("x_embedder", z.reshape(N, Z, F * H * W).swapaxes(1, 2))
    h = np.concatenate([tokens, *suffix(m, tokens)], axis=1)
    angle = m.rope_angles(2 * np.pi * positions(F, H, W, h.shape[1])[None], AXES_DIM, theta)
    for i in range(m.count("transformer_blocks")):
        h = transformer_block(m["transformer_blocks"][i], h, angle, eps)
    y = m.linear("proj_out", m.layer_norm("norm_out", h, eps))
    return unpatch(y[:, : F * H * W], F, H, W)


def suffix(m: Module, tokens):
    """Return what stands behind the tokens and takes part in attention: learned registers, a token of zeros."""
    registers = m.store(m.weight("register_tokens"))
    return np.broadcast_to(registers, (len(tokens), *registers.shape[1:])), np.zeros_like(tokens[:, :1])


def positions(F, H, W, L):
    """Return (time, row, column) of L tokens, shares of the clip and of the tile; 0 behind the F H W. -> [L, 3]"""
    axes = np.meshgrid(axis(F), axis(H), axis(W), indexing="ij")
    places = np.stack(axes, axis=-1).reshape(-1, 3)
    return np.concatenate([places, np.zeros((L - len(places), 3))])


def axis(n):
    """Return the centres of n equal parts of -1..1. -> [n]"""
    return (2 * np.arange(n) + 1) / n - 1


@block
def transformer_block(m: Module, h, angle, eps):
    """Attention and MLP, each scaled by a learned vector. h [N, L, D], angle [1, L, 24] in radians -> [N, L, D]"""
    y = attention(m["attn"], m.rms_norm("norm1.weight", h, eps), angle, eps)
    h = m.add(h, m.multiply(y, m.weight("scale1")))
    y = mlp(m["ff"], m.rms_norm("norm2.weight", h, eps))
    return m.add(h, m.multiply(y, m.weight("scale2")))


@block
def attention(m: Module, h, angle, eps):
    """Self-attention; queries and keys are normalised per head, then rotated. [N, L, D] -> the same"""
    N, L, _ = h.shape
    q, k, v = heads(m.linear("to_qkv", h))
    q, k = (turn(m, m.rms_norm(None, x, eps), angle) for x in (q, k))
    return m.linear("to_out", m.attention(q, k, v).reshape(N, L, -1))


def heads(qkv):
    """Return q, k and v, which follow each other head by head. [N, L, 3 H 64] -> three [N, L, H, 64]"""
    N, L, _ = qkv.shape
    parts = qkv.reshape(N, L, -1, 3, HEAD_DIM)
    return [np.copy(parts[:, :, :, i], order="C") for i in range(3)]


def turn(m: Module, x, angle):
    """Rotate the first channels of a head in halves; the others stay. x [N, L, H, D], angle [1, L, R / 2]"""
    R = 2 * angle.shape[2]
    return np.concatenate([m.rope_halves(np.copy(x[..., :R], order="C"), angle), x[..., R:]], axis=3)


@block
def mlp(m: Module, h):
    """SwiGLU; the gate's rows come first. [N, L, D] -> the same"""
    return m.linear("w2", m.swiglu(m.linear("w1", h)))


def unpatch(y, F, H, W):
    """Return the pixels of tokens: channels outside frames, rows and columns. -> [N, 3, 4F, 16H, 16W]"""
    N = len(y)
    y = y.reshape(N, F, H, W, 3, FRAMES, SIDE, SIDE).transpose(0, 4, 1, 5, 2, 6, 3, 7)
    return y.reshape(N, 3, F * FRAMES, H * SIDE, W * SIDE)
