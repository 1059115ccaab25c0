"""Bugs of MiniMax-H3's autoencoder: edges, clips, tiles, and the transformer that has the place of a decoder."""

from itertools import pairwise

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import vae_minimax_h3 as vae
from refsd.models.vae_wan.bugs import left_as_it_is, with_exchanged_statistics, without_statistics
from refsd.module import Module
from refsd.networks.bugs import Change, replacing, rows_and_columns_swapped, with_result
from refsd.numerics.arithmetic import Arithmetic

_CLIPS, _IN_TILES, _POSITIONS = vae.clips_of, vae.in_tiles, vae.positions


class UnnormalisedQueries(Arithmetic):
    """RMS norms without weights left out."""

    def rms_norm(self, x, weight, eps=1e-6):
        return x if weight is None else super().rms_norm(x, weight, eps)


def _zeros_around(x, axis, before, after):
    sides = [(before, after) if i == axis else (0, 0) for i in range(x.ndim)]
    return np.pad(x, sides)


def _edge_again(x, axis, before, after):
    sides = [(before, after) if i == axis else (0, 0) for i in range(x.ndim)]
    return np.pad(x, sides, mode="edge")


def _other_edges(m: Module, h, frames):
    h = vae.mirrored(vae.mirrored(h, 3, 1, 0), 4, 1, 0)
    return m.conv3d("downsample.conv", h, stride=(frames, 2, 2), padding=vae.EARLIER)


def _over_all_frames(m: Module, name, x, eps):
    N, C, F, H, W = x.shape
    return m.group_norm_silu(name, x.reshape(N, C, F * H, W), eps=eps).reshape(x.shape)


def _black_frames(x):
    """Fill the last clip with black frames, not the last one."""
    more = 0 if x.shape[2] == 1 else -x.shape[2] % vae.CLIP
    return _CLIPS(np.concatenate([x, *[0 * x[:, :, -1:]] * more], axis=2))


def _without_head(h):
    return h if h.shape[2] == 1 else h[:, :, vae.DROP :]


def _whole_frames(m: Module, run, x, tile, overlap, up, down):
    """Without tiles. Source: Wan2GP #2367, diffusers' disable_tiling."""
    return run(x)


def _positions_of_the_frame(m: Module, run, x, tile, overlap, up, down):
    """Give each tile of the decoder its place in the frame. Source: ComfyUI #15561."""
    if up == 1:
        return _IN_TILES(m, run, x, tile, overlap, up, down)
    high, wide = x.shape[3:]
    rows, columns = (vae.tiles(n * up, tile, overlap, vae.SIDE).places for n in (high, wide))
    places = iter([(top // up, left // up) for top, _ in rows for left, _ in columns])

    def run_there(part):
        top, left = next(places)

        def positions(F, H, W, L):
            whole = _POSITIONS(F, high, wide, F * high * wide).reshape(F, high, wide, 3)
            own = whole[:, top : top + H, left : left + W].reshape(-1, 3)
            return np.concatenate([own, np.zeros((L - len(own), 3))])

        vae.positions = positions
        try:
            return run(part)
        finally:
            vae.positions = _POSITIONS

    return _IN_TILES(m, run_there, x, tile, overlap, up, down)


def _whole_numbers(F, H, W, L):
    places = np.stack(np.meshgrid(*map(np.arange, (F, H, W)), indexing="ij"), axis=-1).reshape(-1, 3)
    return np.concatenate([places, np.zeros((L - len(places), 3))])


def _cut_off(m: Module, a, b, extent, axis):
    """Take the second of two that overlap, without a transition."""
    return b


def _half_a_step_on(m: Module, a, b, extent, axis):
    """Fade by (i + 1/2) / extent, as means of pixels are weighted."""
    share = (np.arange(extent) + 0.5).reshape(-1, *[1] * (b.ndim - axis - 1)) / extent
    end, (begin, rest) = np.split(a, [a.shape[axis] - extent], axis=axis)[1], np.split(b, [extent], axis=axis)
    mixed = m.add(m.multiply(end, m.store(1 - share)), m.multiply(begin, m.store(share)))
    return np.concatenate([mixed, rest], axis=axis)


def _first_of_two(m: Module, clips):
    """Keep the earlier clip's frames where two overlap."""
    own, (pad, shared) = vae.CLIP_LATENTS * vae.FRAMES, (vae.PAD, vae.SHARED_FRAMES)
    parts = [clips[0][:, :, pad:own]]
    for before, clip in pairwise(clips):
        parts += [before[:, :, own + pad :], clip[:, :, pad + shared : own]]
    return np.concatenate([*parts, clips[-1][:, :, own + pad :]], axis=2)


def _stacked(qkv):
    N, L, _ = qkv.shape
    return [np.copy(part, order="C").reshape(N, L, -1, vae.HEAD_DIM) for part in np.split(qkv, 3, axis=-1)]


def _neighbours(m: Module, x, angle):
    R = 2 * angle.shape[2]
    return np.concatenate([m.rope(np.copy(x[..., :R], order="C"), angle), x[..., R:]], axis=3)


def _value_activated(m: Module, h):
    return m.linear("w2", m.swiglu(m.linear("w1", h), second_gates=True))


def _unscaled(m: Module, h, angle, eps):
    h = m.add(h, vae.attention(m["attn"], m.rms_norm("norm1.weight", h, eps), angle, eps))
    return m.add(h, vae.mlp(m["ff"], m.rms_norm("norm2.weight", h, eps)))


def _channels_inside(y, F, H, W):
    N = len(y)
    y = y.reshape(N, F, H, W, vae.FRAMES, vae.SIDE, vae.SIDE, 3).transpose(0, 7, 1, 4, 2, 5, 3, 6)
    return y.reshape(N, 3, F * vae.FRAMES, H * vae.SIDE, W * vae.SIDE)


def _of_latents(wrong):
    """Return a bug of the scale of latents, not of pixels. wrong: `to_denoiser` or `to_vae` -> the wrong one"""

    def changed(name):
        right = getattr(vae, name)
        return vae, name, lambda m, x, mean, std: (right if len(mean) == 3 else wrong(right))(m, x, mean, std)

    return Change(replaced=(changed("to_denoiser"), changed("to_vae")))


_NAME = "MiniMax-H3's autoencoder"
BUGS = (
    Mutant(f"{_NAME}: latents are not normalised", _of_latents(left_as_it_is)),
    Mutant(f"{_NAME}: mean and deviation of latents are exchanged", _of_latents(with_exchanged_statistics)),
    Mutant(f"{_NAME}: statistics of latents are not read: mean 0, deviation 1", _of_latents(without_statistics)),
    Mutant(
        f"{_NAME}: pixels are -1..1, not normalised as ImageNet's",
        Change(replaced=((vae, "to_imagenet", lambda m, x: x), (vae, "from_imagenet", lambda m, x: x))),
    ),
    Mutant(f"{_NAME}: queries and keys are not normalised", Change(UnnormalisedQueries)),
    *replacing(
        vae,
        (f"{_NAME}: zeros around frames, not their mirror image", "mirrored", _zeros_around),
        (f"{_NAME}: the edge again around frames, not their mirror image", "mirrored", _edge_again),
        (f"{_NAME}: halving pads above and on the left", "downsample", _other_edges),
        (f"{_NAME}: norms take all frames together", "norm_silu", _over_all_frames),
        (f"{_NAME}: black frames fill the last clip", "clips_of", _black_frames),
        (f"{_NAME}: latents are dropped at the beginning", "without_tail", _without_head),
        (f"{_NAME}: a picture is the first of its latent's frames", "picture_of", lambda clip: clip[:, :, :1]),
        (f"{_NAME}: frames are not in tiles", "in_tiles", _whole_frames),
        (f"{_NAME}: a tile's positions are its place in the frame", "in_tiles", _positions_of_the_frame),
        (f"{_NAME}: tiles and clips end without a transition", "faded", _cut_off),
        (f"{_NAME}: transitions begin half a step later", "faded", _half_a_step_on),
        (f"{_NAME}: frames of two clips are the first's", "joined", _first_of_two),
        (f"{_NAME}: positions are whole numbers", "positions", _whole_numbers),
        (f"{_NAME}: rows and columns are swapped", "positions", rows_and_columns_swapped(_POSITIONS)),
        (f"{_NAME}: positions are edges, not centres", "axis", lambda n: 2 * np.arange(n) / n - 1),
        (f"{_NAME}: the token of zeros is missing", "suffix", with_result(vae.suffix, lambda parts: parts[:1])),
        (f"{_NAME}: the registers are missing", "suffix", with_result(vae.suffix, lambda parts: parts[1:])),
        (f"{_NAME}: q, k and v are read one after another", "heads", _stacked),
        (f"{_NAME}: RoPE turns neighbouring channels", "turn", _neighbours),
        (f"{_NAME}: the MLP activates the value, not the gate", "mlp", _value_activated),
        (f"{_NAME}: blocks are not scaled", "transformer_block", _unscaled),
        (f"{_NAME}: a token's pixels have the colours inside", "unpatch", _channels_inside),
    ),
)
