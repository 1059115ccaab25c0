"""The transformer of MiniMax-H3, which denoises a video and its stereo sound together.

One stack of blocks runs over one sequence: words, keyframes, sound, video. All tokens share all weights; only the
modulation, of a token's own time and mode, tells them apart. Key names are those of ComfyUI's and GGUF files.
Not here: pictures, videos and sounds as references (`ref2va`), which stand between the words and the sound.
"""

from typing import NamedTuple

import numpy as np

from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = 32, 32, 32  # rotary channels of a head for the axes time, row, column; the others are not rotated
THETA = 10000.0
EPS = 1e-5  # of every norm
PATCH = 2  # a token is 2 x 2 pixels of a frame's latent
CONDITION_TIME = 0.999  # of keyframes, which pipelines mix with 0.001 of noise
MODES = VIDEO, TEXT, AUDIO = 0, 1, 2
OF_VIDEO, OF_AUDIO, OF_KEYFRAMES = 0, 1, 2  # which of the three times
FRAME_STEPS = 1, 4, 4, 4, 4  # frames of the video that a latent frame stands for; the autoencoder repeats them
FRAME_TIME = 5 / 3  # of one frame; the unit is that of the sound: 40 per second, where the video has 24
SIDE = 32  # the rows and columns of a square video are in [0, 32)


class Eps(NamedTuple):
    """eps of the norms: before attention and MLP; of queries and keys; at the end of the refiner and of all."""

    norm: float
    qk: float
    final: float


class Modulation(NamedTuple):
    """Modulation of one sublayer f: x + gate * f(norm(x) * (1 + scale) + shift). Each [N, D] of each run."""

    shift: list[np.ndarray]
    scale: list[np.ndarray]
    gate: list[np.ndarray]


class Run(NamedTuple):
    """Neighbouring tokens that share a modulation.

    tokens: how many
    time:   OF_VIDEO, OF_AUDIO or OF_KEYFRAMES
    mode:   VIDEO, TEXT or AUDIO
    """

    tokens: int
    time: int
    mode: int


@block
def minimax_h3(
    m: Module,
    x,
    timesteps,
    context,
    audio,
    audio_timesteps,
    first=None,
    last=None,
    vision=(),
    condition_time=CONDITION_TIME,
    axes_dim=AXES_DIM,
    theta=THETA,
    eps=EPS,
    qk_eps=EPS,
    final_eps=EPS,
):
    """Predict the velocities, data minus noise, of the latents of a video and of its sound.

    x:               [N, C, F, H, W], H and W even
    timesteps:       [N], 0..1, the share of data in x
    context:         [N, J, E], Qwen3-VL's hidden states after its 50th layer
    audio:           [N, A, 2, T], the latents of the left and of the right channel
    audio_timesteps: [N], 0..1, the share of data in the sound
    first, last:     [N, C, 1, H, W], latents of the video's first and last frame; None: not given
    vision:          ranges of words that Qwen3-VL read from a picture: start, end, start, end, ...
    condition_time:  time of the keyframes, where the video's is not later
    axes_dim:        rotary channels of a head for the axes (time, row, column), at most the head's
    eps:             of the norms before attention and MLP; qk_eps: of queries and keys; final_eps: at the ends
    -> v, v_audio:   [N, C, F, H, W] and [N, A, 2, T]

    Raises BadInput if H or W is odd, if there are no words, no frames or no sound, if a keyframe has another size
    than a frame, if axes_dim has more channels than a head, or if the ranges of vision are not within the words, in
    order.
    Source: diffusers transformer_minimax_h3.py and modular_pipelines/minimax_h3/before_denoise.py; for files with a
    table of times, ComfyUI comfy/ldm/minimax/model.py.
    """
    N, C, F, H, W = x.shape
    J, T = context.shape[1], audio.shape[3]
    if H % PATCH or W % PATCH:
        raise BadInput(f"x: latents of {H} x {W}: expected multiples of {PATCH} x {PATCH}; pad or crop them")
    if 0 in (J, T, F, H, W):
        raise BadInput(f"{J} words, {T} steps of sound, {F} latents of {H} x {W}: expected none of them to be 0")
    keyframes = {which: frame for which, frame in (("first", first), ("last", last)) if frame is not None}
    for which, frame in keyframes.items():
        if frame.shape != (N, C, 1, H, W):
            raise BadInput(f"{which}: a keyframe of {frame.shape}: expected {(N, C, 1, H, W)}, as x's frames")
    still = len(keyframes) * H * W // PATCH**2
    runs = [
        *words(J, vision),
        *([Run(still, OF_KEYFRAMES, VIDEO)] if keyframes else []),
        Run(2 * T, OF_AUDIO, AUDIO),
        Run(F * H * W // PATCH**2, OF_VIDEO, VIDEO),
    ]

    norms = Eps(eps, qk_eps, final_eps)
    text = token_refiner(m["token_refiner"], m.linear("condition_proj", context), norms)
    frames = m.linear("video_patch_proj", np.concatenate([patches(v) for v in (*keyframes.values(), x)], axis=1))
    sound = m.linear("audio_patch_proj", audio.transpose(0, 2, 3, 1).reshape(N, 2 * T, -1))
    h = np.concatenate([text, frames[:, :still], sound, frames[:, still:]], axis=1)

    vec = conditioning(m, times(timesteps, audio_timesteps, condition_time))
    angle = m.rope_angles(positions(J, keyframes, T, F, H, W)[None], axes_dim, theta)
    for i in range(m.count("blocks")):
        h = transformer_block(m["blocks"][i], h, vec, angle, runs, norms)
    v, v_audio = final_layer(m["final_layer"], h, vec, runs, norms)
    return unpatch(v, x.shape), v_audio.reshape(N, 2, T, -1).transpose(0, 3, 1, 2)


def words(J, vision):
    """Return the runs of the words: those of a picture have the video's modulation.

    Raises BadInput unless the ranges of vision are within the words, in order.
    """
    bounds = [0, *vision, J]
    if len(vision) % 2 or bounds != sorted(bounds):
        raise BadInput(f"vision {[*vision]}: expected start and end of each range, in order, among {J} words")
    lengths = np.diff(bounds).tolist()
    return [Run(n, OF_VIDEO, VIDEO if i % 2 else TEXT) for i, n in enumerate(lengths) if n]


def patches(x):
    """Return tokens of 2 x 2 pixels, channels first. [N, C, F, H, W] -> [N, F H W / 4, 4 C]"""
    N, C, F, H, W = x.shape
    y = x.reshape(N, C, F, H // PATCH, PATCH, W // PATCH, PATCH)
    return y.transpose(0, 2, 3, 5, 1, 4, 6).reshape(N, -1, C * PATCH**2)


def unpatch(tokens, shape):
    """Return the video of its tokens, the inverse of `patches`. shape: (N, C, F, H, W)"""
    N, C, F, H, W = shape
    y = tokens.reshape(N, F, H // PATCH, W // PATCH, C, PATCH, PATCH)
    return y.transpose(0, 4, 1, 2, 5, 3, 6).reshape(N, C, F, H, W)


def times(timesteps, audio_timesteps, condition_time):
    """Return the times of video, sound and keyframes, all items' of the one before the next. -> [3 N]"""
    return np.concatenate([timesteps, audio_timesteps, np.maximum(timesteps, condition_time)])


def positions(J, keyframes, T, F, H, W):
    """Return (time, row, column) of each token. -> [L, 3]

    Words count up on the axis of time, and sound and video begin together after them. The sound's channels are at
    row 0 and at the first and the last column. The frame is centred on 16, and all frames have the area of a
    square; a token is at its upper left edge, so a square's are in [0, 32).
    """
    rows, columns = axis(H, H * W), axis(W, H * W)
    row, column = (places.ravel() for places in np.meshgrid(rows, columns, indexing="ij"))
    begin = frame_times(F)
    still = {"first": 0.0, "last": begin[-1] + FRAME_TIME * (FRAME_STEPS[(F - 1) % len(FRAME_STEPS)] - 1)}
    parts = [placed(np.arange(J), 0.0, 0.0)]
    parts += [placed(J + still[which], row, column) for which in keyframes]
    parts += [placed(J + np.arange(T), 0.0, columns[side]) for side in (0, -1)]
    parts += [placed(J + start, row, column) for start in begin]
    return np.concatenate(parts)


def placed(time, row, column):
    return np.stack(np.broadcast_arrays(time, row, column), axis=-1)


def axis(n, area):
    """Return the positions of every second of n pixels of a frame with `area` pixels. -> [n / 2]"""
    length = n / np.sqrt(area)
    return SIDE * ((1 - length) / 2 + np.arange(0, n, PATCH) * (length / n))


def frame_times(F):
    """Return when each latent frame begins, in units of the sound. -> [F]"""
    steps = np.resize(FRAME_STEPS, F)
    return FRAME_TIME * (np.cumsum(steps) - steps)


def conditioning(m: Module, t):
    """Embed the times for all modulations. [3 N] -> [3 N, D]"""
    return m.silu(time_embedder(m["time_embedder"], t)) if "time_embedder" in m else time_curve(m, t)


@block
def time_embedder(m: Module, t):
    """[N] -> [N, D]; 256 sinusoidal channels of 0..1, cosines first"""
    waves = m.timestep_embedding(t, m.shape("proj_in.weight")[1])
    return m.linear("proj_out", m.silu(m.linear("proj_in", waves)))


def time_curve(m: Module, t):
    """Interpolate in a pruned file's table, whose rows are for the times from 0 to 1. No SiLU. [N] -> [N, D]"""
    table = m.weight("adaln_t_table")
    away = np.minimum(np.maximum(t, 0.0), 1.0)[:, None] * (len(table) - 1) - np.arange(len(table))
    return m.store(np.matmul(np.maximum(1 - np.maximum(away, np.negative(away)), 0.0), table))


@block
def token_refiner(m: Module, h, eps: Eps):
    """Let the words see each other, without time and without rotation. [N, J, D] -> the same"""
    for i in range(m.count("blocks")):
        h = refiner_block(m["blocks"][i], h, eps)
    return m.rms_norm("final_norm.weight", h, eps.final)


@block
def refiner_block(m: Module, h, eps: Eps):
    """[N, J, D] -> the same"""
    h = m.add(h, attention(m["attn"], m.rms_norm("norm1.weight", h, eps.norm), None, eps))
    return m.add(h, mlp(m["mlp"], m.rms_norm("norm2.weight", h, eps.norm)))


@block
def transformer_block(m: Module, h, vec, angle, runs, eps: Eps):
    """Attention and MLP over all tokens, each scaled, shifted and gated by its time and mode.

    h:     [N, L, D]
    vec:   [3 N, time_dim]
    angle: [1, L, rotary channels / 2], radians
    -> h:  [N, L, D]
    """
    attn_mod, mlp_mod = modulation(m["adaln_proj"], vec, len(h), runs)
    y = modulated(m, m.rms_norm("norm1.weight", h, eps.norm), attn_mod, runs)
    h = gated_add(m, h, attention(m["attn"], y, angle, eps), attn_mod.gate, runs)
    y = modulated(m, m.rms_norm("norm2.weight", h, eps.norm), mlp_mod, runs)
    return gated_add(m, h, mlp(m["mlp"], y), mlp_mod.gate, runs)


def modulation(m: Module, vec, N, runs):
    """Compute the Modulations of attention and MLP from vec [3 N, time_dim]."""
    table = m.linear("linear", vec).reshape(3, N, len(MODES), 6, -1)  # [time, N, mode, 6, D]
    six = [[table[run.time][:, run.mode, i] for run in runs] for i in range(6)]
    return Modulation(*six[:3]), Modulation(*six[3:])


def modulated(m: Module, h, mod: Modulation, runs):
    """h * (1 + scale) + shift. h [N, L, D]"""
    parts = zip(split(h, runs), mod.shift, mod.scale, strict=True)
    return np.concatenate([m.modulate(*part) for part in parts], axis=1)


def gated_add(m: Module, h, y, gate, runs):
    """h + gate * y. h, y [N, L, D], gate: [N, D] of each run"""
    parts = zip(split(h, runs), split(y, runs), gate, strict=True)
    return np.concatenate([m.gated_add(*part) for part in parts], axis=1)


def split(h, runs):
    """Cut the sequence into its runs. h [N, L, D]"""
    return np.split(h, np.cumsum([run.tokens for run in runs])[:-1], axis=1)


@block
def attention(m: Module, h, angle, eps: Eps):
    """Self-attention; queries and keys are normalised per head, then rotated. [N, L, D] -> the same"""
    N, L, _ = h.shape
    head_dim = m.shape("q_norm.weight")[0]
    q, k, v = (t.reshape(N, L, -1, head_dim) for t in np.split(m.linear("qkv_proj", h), 3, axis=-1))
    q, k = m.rms_norm("q_norm.weight", q, eps.qk), m.rms_norm("k_norm.weight", k, eps.qk)
    if angle is not None:
        q, k = turn(m, q, angle), turn(m, k, angle)
    return m.linear("out_proj", m.attention(q, k, v).reshape(N, L, -1))


def turn(m: Module, x, angle):
    """Rotate the first channels of a head in halves; the others stay. x [N, L, H, D], angle [1, L, R / 2]"""
    R = 2 * angle.shape[2]
    if x.shape[3] < R:
        raise BadInput(f"axes_dim has {R} channels for heads of {x.shape[3]}: expected no more than a head has")
    return np.concatenate([m.rope_halves(np.copy(x[..., :R], order="C"), angle), x[..., R:]], axis=3)


@block
def mlp(m: Module, h):
    """SwiGLU; the gate's rows come first. [N, L, D] -> the same"""
    return m.linear("fc2", m.swiglu(m.linear("fc1", h)))


@block
def final_layer(m: Module, h, vec, runs, eps: Eps):
    """Shift and scale of each token's time, the same for all modes; a head for the video and one for the sound.

    h [N, L, D] -> [N, F H W / 4, 4 C], [N, 2 T, A]
    """
    table = m.linear("adaln_proj.linear", vec).reshape(3, len(h), 2, -1)  # [time, N, 2, D]
    *_, sound, video = split(m.rms_norm("norm.weight", h, eps.final), runs)
    video = m.modulate(video, *table[OF_VIDEO].swapaxes(0, 1))
    sound = m.modulate(sound, *table[OF_AUDIO].swapaxes(0, 1))
    return m.linear("video_out", video), m.linear("audio_out", sound)
