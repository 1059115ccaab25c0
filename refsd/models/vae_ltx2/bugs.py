"""Bugs of LTX-2's autoencoder: frames and pixels beyond a video, steps and their shortcuts, the noise level."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import vae_ltx2 as vae
from refsd.models.vae_ltx2 import Edges, Modulation, after_first_again, unfolded
from refsd.models.vae_wan.bugs import left_as_it_is, no_average, scaling, with_exchanged_statistics, without_last
from refsd.module import Module
from refsd.networks.bugs import Change, replacing, with_arguments, with_result
from refsd.numerics.arithmetic import Arithmetic

_FOLDED, _MODULATIONS, _SCALED = vae.folded, vae.modulations, vae.scaled_time
_CONV, _PATCHES, _PIXELS = vae.conv, vae.to_patches, vae.to_pixels
_STATISTICS = vae.statistics


class LargerEps(Arithmetic):
    """RMS norms without weights that have the eps of layer norms."""

    def rms_norm(self, x, weight, eps=1e-6):
        return super().rms_norm(x, weight, 1e-6 if weight is None and eps == vae.NORM_EPS else eps)


def _no_statistics(m: Module):
    mean, std = _STATISTICS(m)
    return np.zeros_like(mean), np.ones_like(std)


def _edge_again(x, axis, before, after):
    sides = [(before, after) if i == axis else (0, 0) for i in range(x.ndim)]
    return np.pad(x, sides, mode="edge")


def _other_edges(m: Module, x, edges: Edges):
    """Exchange zeros and mirror images, but for a side of one, which has none."""
    return _CONV(m, x, edges._replace(mirrors=not edges.mirrors and min(x.shape[3:]) > 1))


def _empty_frames(x, causal):
    zeros = np.zeros_like(x[:, :, :1])
    return np.concatenate([zeros, zeros, x] if causal else [zeros, x, zeros], axis=2)


def _other_side(x, causal):
    """Let what sees no later frame see one, and the reverse."""
    return np.concatenate([x[:, :, :1], x, x[:, :, -1:]], axis=2) if causal else after_first_again(x, 2)


def _first_on_both_sides(x, causal):
    return after_first_again(x, 2) if causal else np.concatenate([x[:, :, :1], x, x[:, :, :1]], axis=2)


def _repeated_last(x, number):
    """Repeat the last frame where frames are halved; before a video stands the first, twice."""
    if number != 1:
        return after_first_again(x, number)
    return np.concatenate([x, *[x[:, :, -1:]] * number], axis=2)


def _channels_inside(x, frames, side):
    """Take frames and pixels for channels, the channels inside."""
    y = _FOLDED(x, frames, side)
    N, _K, F, H, W = y.shape
    return y.reshape(N, x.shape[1], -1, F, H, W).swapaxes(1, 2).reshape(y.shape)


def _unfolded_channels_inside(x, frames, side):
    N, _K, F, H, W = x.shape
    boxes = x.reshape(N, frames * side * side, -1, F, H, W).swapaxes(1, 2)
    return unfolded(boxes.reshape(x.shape), frames, side)


def _first_of_group(x, frames, side, outputs):
    """One value of each group instead of their mean."""
    y = _FOLDED(x, frames, side)
    return y[:, :: y.shape[1] // outputs]


def _rows_outside(x):
    N, C, F, H, W = x.shape
    p = vae.PATCH
    return x.reshape(N, C, F, H // p, p, W // p, p).transpose(0, 1, 4, 6, 2, 3, 5).reshape(_PATCHES(x).shape)


def _pixels_of_rows(x):
    N, C, F, H, W = x.shape
    p = vae.PATCH
    pixels = x.reshape(N, C // p**2, p, p, F, H, W).transpose(0, 1, 4, 5, 2, 6, 3)
    return pixels.reshape(_PIXELS(x).shape)


def _norms_of_all_pixels(m: Module, x, modulation=None):
    """RMS norms over the channels of all pixels together."""
    N, C = x.shape[:2]
    h = m.rms_norm(None, x.reshape(N, -1), vae.NORM_EPS).reshape(N, C, -1).swapaxes(1, 2)
    if modulation is not None:
        h = m.modulate(h, modulation.shift, modulation.scale)
    return m.silu(h).swapaxes(1, 2).reshape(x.shape)


def _scale_first(modulations):
    return tuple(part and Modulation(part.scale, part.shift) for part in modulations)


def _without_table(m: Module, table, time):
    if time is None:
        return None, None
    both = time.reshape(len(time), *m.shape(table))
    return tuple(Modulation(both[:, i], both[:, i + 1]) for i in range(0, both.shape[1], 2))


def _last_unmodulated(m: Module, table, time):
    return (None, None) if table.startswith("last_") else _MODULATIONS(m, table, time)


def _sines_first(m: Module, t):
    if t is None:
        return None
    m = m["timestep_embedder"]
    h = m.timestep_embedding(t, vae.TIME_CHANNELS, sin_first=True)
    return m.linear("linear_2", m.silu(m.linear("linear_1", h)))


def _first_item_s_time(m: Module, timesteps):
    t = _SCALED(m, timesteps)
    return None if t is None else np.full_like(t, t[0])


_NAME = "LTX-2's autoencoder"
BUGS = (
    Mutant(f"{_NAME}: latents are not normalised", scaling(vae, left_as_it_is)),
    Mutant(f"{_NAME}: mean and deviation of latents are exchanged", scaling(vae, with_exchanged_statistics)),
    Mutant(
        f"{_NAME}: patches have rows outside columns",
        Change(replaced=((vae, "to_patches", _rows_outside), (vae, "to_pixels", _pixels_of_rows))),
    ),
    Mutant(f"{_NAME}: norms have an eps of 1e-6", Change(LargerEps)),
    *replacing(
        vae,
        (f"{_NAME}: statistics of latents are not read: mean 0, deviation 1", "statistics", _no_statistics),
        (f"{_NAME}: the edge again around frames, not their mirror image", "mirrored", _edge_again),
        (f"{_NAME}: zeros and mirror images around frames are exchanged", "conv", _other_edges),
        (f"{_NAME}: empty frames around a video", "with_frames_around", _empty_frames),
        (f"{_NAME}: the encoder sees a later frame, the decoder none", "with_frames_around", _other_side),
        (f"{_NAME}: behind a video stands its first frame", "with_frames_around", _first_on_both_sides),
        (f"{_NAME}: halving frames repeats the last, not the first", "after_first_again", _repeated_last),
        (f"{_NAME}: doubling frames leaves out the last, not the first", "without_first", without_last),
        (f"{_NAME}: halving takes the channels inside the pixels", "folded", _channels_inside),
        (f"{_NAME}: doubling takes the channels inside the pixels", "unfolded", _unfolded_channels_inside),
        (f"{_NAME}: halving has no shortcut", "averaged", no_average),
        (f"{_NAME}: shortcuts take one value of a group", "averaged", _first_of_group),
        (f"{_NAME}: doubling has no shortcut", "upsample", with_arguments(vae.upsample, shortcuts=lambda _: False)),
        (
            f"{_NAME}: LTX-2.3's doubling has a shortcut",
            "upsample",
            with_arguments(vae.upsample, shortcuts=lambda _: True),
        ),
        (f"{_NAME}: shortcuts repeat each channel", "in_turn", lambda x, n: np.repeat(x, n // x.shape[1], axis=1)),
        (f"{_NAME}: norms take all pixels together", "norm_silu", _norms_of_all_pixels),
        (f"{_NAME}: shift and scale are exchanged", "modulations", with_result(_MODULATIONS, _scale_first)),
        (
            f"{_NAME}: the two modulations of a block are exchanged",
            "modulations",
            with_result(_MODULATIONS, lambda both: both[::-1]),
        ),
        (f"{_NAME}: modulations lack the block's table", "modulations", _without_table),
        (f"{_NAME}: the last norm is not modulated", "modulations", _last_unmodulated),
        (f"{_NAME}: the noise level is not scaled", "scaled_time", lambda m, timesteps: timesteps),
        (f"{_NAME}: the noise level is the first item's", "scaled_time", _first_item_s_time),
        (f"{_NAME}: sines of the noise level are first", "time_embedding", _sines_first),
    ),
)
