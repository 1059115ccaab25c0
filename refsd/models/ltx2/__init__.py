"""The transformer of LTX-2 and LTX-2.3, which denoises a video and its sound together.

Two streams of blocks, a wide one for the video and a narrow one for the sound, each with its own text, and in every
block each looks at the other. Key names are those of Lightricks' files. Not here: the connectors that make the
texts from Gemma 3's hidden states, masks (the connectors leave no word out), a time for each step of the sound,
and what LTX-2.5 adds.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels.sigmoid import sigmoid
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

HEAD_DIM, AUDIO_HEAD_DIM = 128, 64
THETA = 10000.0
EPS = 1e-6  # of the norms of both streams, which have no weights
QK_EPS = FINAL_EPS = 1e-6
EXTENT = 20, 2048, 2048  # seconds, rows and columns of pixels: positions are shares of them
AUDIO_EXTENT = 20  # seconds
FPS = 24.0
FRAMES, SIDE = 8, 32  # pixels that a latent stands for; its first frame stands for one
AUDIO_STEPS, AUDIO_RATE = 4, 100  # steps of the spectrogram that a latent stands for, and steps per second
VIDEO, AUDIO = "", "audio_"  # what the names of a stream's weights begin with


class Stream(NamedTuple):
    """What every block needs to know of a stream. S: parts of its tokens that have a time each, L / S tokens long.

    name:        VIDEO or AUDIO
    head_dim:    channels of a head in attention to itself and to its text
    text:        [N, J, D]
    time:        [N, S, 6 or 9, D], modulation before the block's table is added
    text_time:   [N, 1, 2, D], modulation of the text; None: it is not modulated
    cross_time:  [N, S, 5, D], modulation of what it takes from the other stream and gives to it
    angle:       [1, L, heads, head_dim / 2] in radians
    cross_angle: the same for the attention between the streams, by the time alone
    split:       True if RoPE turns channel i of a head with its channel D/2 + i, False: with its neighbour
    """

    name: str
    head_dim: int
    text: np.ndarray
    time: np.ndarray
    text_time: np.ndarray | None
    cross_time: np.ndarray
    angle: np.ndarray
    cross_angle: np.ndarray
    split: bool


@block
def ltx2(
    m: Module,
    x,
    timesteps,
    context,
    audio,
    audio_timesteps,
    audio_context,
    frame_timesteps=None,
    fps=FPS,
    head_dim=HEAD_DIM,
    audio_head_dim=AUDIO_HEAD_DIM,
    extent=EXTENT,
    audio_extent=AUDIO_EXTENT,
    theta=THETA,
    split=True,
    eps=EPS,
    gate_scale=1.0,
    cross_timestep=True,
    isolated=False,
    values_only=(),
):
    """Predict the velocities, noise minus data, of the latents of a video and of its sound.

    x:               [N, C, F, H, W]
    timesteps:       [N], 0..1000
    context:         [N, J, E], the video's text
    audio:           [N, T, A], the latents of the sound, T of them
    audio_timesteps: [N], 0..1000
    audio_context:   [N, J, G], the sound's text
    frame_timesteps: [N, F], 0..1000, if frames have times of their own, as a picture that the video begins with
    fps:             frames of the video per second
    head_dim, audio_head_dim: channels of a head
    extent:          seconds, rows and columns whose shares are positions; audio_extent: seconds
    split:           as in Stream
    eps:             of the norms without weights, before attention and MLP
    gate_scale:      factor of the times that make the gates between the streams
    cross_timestep:  True if a stream's side of the attention between them is modulated by the other's time
    isolated:        True if the streams do not see each other
    values_only:     blocks whose attention of a stream to itself gives the values as they are (STG)
    -> v, v_audio:   [N, C, F, H, W] and [N, T, A]

    Raises BadInput if there are no words, no frames or no sound.
    Source: diffusers transformer_ltx2.py; Lightricks/LTX-2, ltx_core/model/transformer.
    """
    N, C, F, H, W = x.shape
    J, T = context.shape[1], audio.shape[1]
    if 0 in (J, T, F, H, W):
        raise BadInput(f"{J} words, {T} steps of sound, {F} latents of {H} x {W}: expected none of them to be 0")
    v, a = m.linear("patchify_proj", tokens(x)), m.linear("audio_patchify_proj", audio)
    time, audio_time = timesteps[:, None], audio_timesteps[:, None]
    own = time if frame_timesteps is None else frame_timesteps
    cross, audio_cross = between(own, time, audio_time, cross_timestep)

    times, embedded = adaln_single(m["adaln_single"], own)
    audio_times, audio_embedded = adaln_single(m["audio_adaln_single"], audio_time)
    heads, audio_heads = v.shape[2] // head_dim, a.shape[2] // audio_head_dim
    where, when = positions(F, H, W, fps), audio_positions(T)
    longest, narrow = [max(extent[0], audio_extent)], a.shape[2]
    video_stream = Stream(
        VIDEO,
        head_dim,
        projected(m, "caption_projection", context),
        times,
        prompt_times(m, "prompt_adaln_single", time),
        cross_times(m, "av_ca_video_scale_shift_adaln_single", "av_ca_a2v_gate_adaln_single", cross, gate_scale),
        angles(m, where, extent, v.shape[2], theta, heads),
        angles(m, where[:, :1], longest, narrow, theta, heads),
        split,
    )
    audio_stream = Stream(
        AUDIO,
        audio_head_dim,
        projected(m, "audio_caption_projection", audio_context),
        audio_times,
        prompt_times(m, "audio_prompt_adaln_single", audio_time),
        cross_times(
            m, "av_ca_audio_scale_shift_adaln_single", "av_ca_v2a_gate_adaln_single", audio_cross, gate_scale
        ),
        angles(m, when, [audio_extent], narrow, theta, audio_heads),
        angles(m, when, longest, narrow, theta, audio_heads),
        split,
    )
    for i in range(m.count("transformer_blocks")):
        each = m["transformer_blocks"][i]
        v, a = transformer_block(each, v, a, video_stream, audio_stream, eps, i in values_only, isolated)

    out = head(m, VIDEO, v, embedded)
    return out.transpose(0, 2, 1).reshape(N, C, F, H, W), head(m, AUDIO, a, audio_embedded)


def tokens(x):
    """[N, C, F, H, W] -> [N, F H W, C]"""
    return x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)


def positions(F, H, W, fps):
    """Return (second, row, column) in the middle of each token of the video. -> [F H W, 3]"""
    middles = middle(F, FRAMES) / fps, SIDE * (np.arange(H) + 0.5), SIDE * (np.arange(W) + 0.5)
    return np.stack([places.ravel() for places in np.meshgrid(*middles, indexing="ij")], axis=-1)


def audio_positions(T):
    """Return the second in the middle of each latent of the sound. -> [T, 1]"""
    return middle(T, AUDIO_STEPS)[:, None] / AUDIO_RATE


def middle(n, steps):
    """Return the middle of n latents of `steps` steps each, the first of which is one step long. -> [n]"""
    end = np.arange(n) * steps + 1.0
    return (np.maximum(end - steps, 0) + end) / 2


def angles(m: Module, places, extent, channels, theta, heads):
    """Return the angles of RoPE, in radians, [1, L, heads, channels / heads / 2].

    The axes share each frequency, and the frequencies go on from head to head: no head has all of them. What the
    axes leave of the channels comes first and is not turned. Angles reach 15,708 radians, and the originals round
    each step to float32, so theirs are a thousandth off; here they are as exact as what is computed with.

    places: [L, A]; extent: of each axis
    """
    L, axes = places.shape
    dtype = m.arithmetic.numerics.compute_dtype
    frequency = (np.pi / 2 * theta ** np.linspace(0, 1, channels // (2 * axes))).astype(dtype)
    share = places.astype(dtype) / np.array(extent, dtype)
    turns = (2 * share - 1)[:, None] * frequency[:, None]
    rest = np.zeros((L, channels // 2 - turns[0].size))
    return np.concatenate([rest, turns.reshape(L, -1)], axis=1).reshape(1, L, heads, -1)


@block
def adaln_single(m: Module, t):
    """Embed the times, and make modulations of them. [N, S] -> [N, S, k, D], [N, S, D]; 256 sinusoidal channels"""
    embedder = m["emb.timestep_embedder"]
    waves = m.timestep_embedding(t.reshape(-1), embedder.shape("linear_1.weight")[1])
    y = embedder.linear("linear_2", m.silu(embedder.linear("linear_1", waves)))
    D = y.shape[1]
    return m.linear("linear", m.silu(y)).reshape(*t.shape, -1, D), y.reshape(*t.shape, D)


def between(own, time, audio_time, cross_timestep):
    """Return the times of the video's side, and of the sound's, of the attention between them."""
    return (audio_time, time) if cross_timestep else (own, audio_time)


def prompt_times(m: Module, name, t):
    """Return the modulation of a text, which LTX-2.3 has and LTX-2 has not."""
    return adaln_single(m[name], t)[0] if name in m else None


def cross_times(m: Module, name, gate, t, gate_scale):
    """Return scale and shift for a2v, scale and shift for v2a, and the gate of what is taken. [N, S, 5, D]"""
    return np.concatenate([adaln_single(m[name], t)[0], adaln_single(m[gate], t * gate_scale)[0]], axis=2)


def projected(m: Module, name, text):
    """Return a text in its stream's width; LTX-2.3's connectors have done that."""
    return caption_projection(m[name], text) if name in m else text


@block
def caption_projection(m: Module, text):
    """[N, J, E] -> [N, J, D]"""
    return m.linear("linear_2", m.gelu_tanh(m.linear("linear_1", text)))


@block
def transformer_block(m: Module, v, a, video: Stream, audio: Stream, eps, values_only, isolated):
    """Each stream looks at itself and at its text, then each at the other, then an MLP. v, a [N, L, D] of each"""
    mod, audio_mod = (table(m, f"{each.name}scale_shift_table", each.time) for each in (video, audio))
    v = within(m, v, video, mod, eps, values_only)
    a = within(m, a, audio, audio_mod, eps, values_only)
    if not isolated:
        v, a = across(m, v, a, video, audio, eps)
    return mlp(m, v, video, mod, eps), mlp(m, a, audio, audio_mod, eps)


def within(m: Module, h, stream: Stream, mod, eps, values_only):
    """A stream looks at itself, then at its text. mod: shift, scale, gate; of the MLP; LTX-2.3: of the text"""
    name, head_dim, angle, split = stream.name, stream.head_dim, stream.angle, stream.split
    y = modulated(m, m.rms_norm(None, h, eps), *mod[:2])
    h = gated_add(m, h, attention(m[f"{name}attn1"], y, y, head_dim, angle, angle, split, values_only), mod[2])
    y, text = m.rms_norm(None, h, eps), stream.text
    if stream.text_time is None:
        return m.add(h, attention(m[f"{name}attn2"], y, text, head_dim))
    y = modulated(m, y, *mod[6:8])
    text = modulated(m, text, *table(m, f"{name}prompt_scale_shift_table", stream.text_time))
    return gated_add(m, h, attention(m[f"{name}attn2"], y, text, head_dim), mod[8])


def across(m: Module, v, a, video: Stream, audio: Stream, eps):
    """Each stream looks at the other as it was before; RoPE turns by the time alone. Scale is before shift."""
    y, z = m.rms_norm(None, v, eps), m.rms_norm(None, a, eps)
    of_video = table(m, "scale_shift_table_a2v_ca_video", video.cross_time)
    of_audio = table(m, "scale_shift_table_a2v_ca_audio", audio.cross_time)
    taken = attention(
        m["audio_to_video_attn"],
        modulated(m, y, of_video[1], of_video[0]),
        modulated(m, z, of_audio[1], of_audio[0]),
        audio.head_dim,
        video.cross_angle,
        audio.cross_angle,
        video.split,
    )
    given = attention(
        m["video_to_audio_attn"],
        modulated(m, z, of_audio[3], of_audio[2]),
        modulated(m, y, of_video[3], of_video[2]),
        audio.head_dim,
        audio.cross_angle,
        video.cross_angle,
        video.split,
    )
    return gated_add(m, v, taken, of_video[4]), gated_add(m, a, given, of_audio[4])


def mlp(m: Module, h, stream: Stream, mod, eps):
    y = modulated(m, m.rms_norm(None, h, eps), *mod[3:5])
    return gated_add(m, h, feed_forward(m[f"{stream.name}ff"], y), mod[5])


@block
def feed_forward(m: Module, h):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("net.2", m.gelu_tanh(m.linear("net.0.proj", h)))


@block
def attention(m: Module, x, other, head_dim, angle=None, other_angle=None, split=True, values_only=False):
    """x attends to `other`; queries and keys are normalised over all heads at once, then rotated if given angles.

    LTX-2.3 has a gate for each head.

    x [N, L, D], other [N, J, E] -> [N, L, D]
    """
    y = v = m.linear("to_v", other)
    if not values_only:
        q = m.rms_norm("q_norm.weight", m.linear("to_q", x), QK_EPS)
        k = m.rms_norm("k_norm.weight", m.linear("to_k", other), QK_EPS)
        if angle is not None:
            q, k = turn(m, q, angle, split), turn(m, k, other_angle, split)
        q, k, v = (t.reshape(*t.shape[:2], -1, head_dim) for t in (q, k, v))
        y = m.attention(q, k, v).reshape(*x.shape[:2], -1)
    if "to_gate_logits" in m:
        gate = gates(m, x)
        y = m.multiply(y.reshape(*gate.shape, -1), gate[..., None]).reshape(y.shape)
    return m.linear("to_out.0", y)


def gates(m: Module, x):
    """Return a number for each head, 0..2. [N, L, D] -> [N, L, heads]"""
    return m.multiply(m.apply(sigmoid, m.linear("to_gate_logits", x)), 2.0)


def turn(m: Module, x, angle, split):
    """Rotate each head by angles of its own. x [N, L, D], angle [1, L, heads, D / heads / 2]"""
    N, L, _ = x.shape
    heads = angle.shape[2]
    apart = x.reshape(N, L * heads, 1, -1)
    rotate = m.rope_halves if split else m.rope
    return rotate(apart, angle.reshape(1, L * heads, -1)).reshape(x.shape)


def table(m: Module, name, time):
    """Return the modulations: the block's table and the time's. [N, S, k, D] -> k of [N, S, D]"""
    mod = m.add(time, m.weight(name))
    return [mod[:, :, i] for i in range(mod.shape[2])]


def modulated(m: Module, x, shift, scale):
    """x * (1 + scale) + shift. x [N, L, D]; shift, scale [N, S, D], each for L / S tokens"""
    D = x.shape[2]
    parts = x.reshape(shift.shape[0] * shift.shape[1], -1, D)
    return m.modulate(parts, shift.reshape(-1, D), scale.reshape(-1, D)).reshape(x.shape)


def gated_add(m: Module, x, h, gate):
    """x + gate * h. x, h [N, L, D], gate [N, S, D]"""
    D, parts = x.shape[2], gate.shape[0] * gate.shape[1]
    added = m.gated_add(x.reshape(parts, -1, D), h.reshape(parts, -1, D), gate.reshape(-1, D))
    return added.reshape(x.shape)


def head(m: Module, name, h, embedded):
    """The last norm, shifted and scaled by the time, then a linear layer. [N, L, D], [N, S, D] -> [N, L, C]"""
    shift, scale = table(m, f"{name}scale_shift_table", embedded[:, :, None])
    D = h.shape[2]
    parts = h.reshape(shift.shape[0] * shift.shape[1], -1, D)
    y = m.adaptive_layer_norm(parts, shift.reshape(-1, D), scale.reshape(-1, D), FINAL_EPS)
    return m.linear(f"{name}proj_out", y.reshape(h.shape))
