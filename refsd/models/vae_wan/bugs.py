"""Bugs of networks over frames: which frames a convolution sees, how frames are made, how latents are scaled."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import vae_wan
from refsd.models.vae_wan import CAUSAL_IN_TIME, in_turn, pictures, video
from refsd.networks.bugs import Change, replacing, with_result
from refsd.numerics.arithmetic import Arithmetic


def _changed_conv3d(change):
    """Return an Arithmetic whose causal convolutions over frames are changed. change: x, weight, padding -> same"""

    class Changed(Arithmetic):
        def conv3d(self, x, weight, bias, stride=1, padding=(0,) * 6, dilation=1, groups=1):
            if padding[0] > padding[1]:
                x, weight, padding = change(x, weight, tuple(padding))
            return super().conv3d(x, weight, bias, stride, padding, dilation, groups)

    return Changed


def _without(weight, taps):
    weight = weight.copy()
    weight[:, :, taps] = 0
    return weight


def _first_again(x, weight, padding):
    front, *rest = padding
    return np.concatenate([*[x[:, :, :1]] * front, x], axis=2), weight, (0, *rest)


LaterFrames = _changed_conv3d(lambda x, w, p: (x, w, (p[1], p[0], *p[2:])))
BothSidesInTime = _changed_conv3d(lambda x, w, p: (x, w, (p[0] // 2, p[0] - p[0] // 2, *p[2:])))
FramesApart = _changed_conv3d(lambda x, w, p: (x, _without(w, slice(0, -1)), p))
OneFrameKept = _changed_conv3d(lambda x, w, p: (x, _without(w, 0), p))
FirstFrameRepeated = _changed_conv3d(_first_again)


class SeparateNorms(Arithmetic):
    """RMS norms of channels and the SiLU after them as two operations, so that a bug of the norm is in both."""

    def rms_norm_channels_silu(self, x, weight, eps=1e-12):
        return self.silu(self.rms_norm_channels(x, weight, eps))


class NormsOfUnitLength(SeparateNorms):
    """RMS norms of channels without their factor sqrt(C)."""

    def rms_norm_channels(self, x, weight, eps=1e-12):
        return super().rms_norm_channels(x, weight / len(weight) ** 0.5, eps)


def _flip_in_time(name: str, values: np.ndarray) -> np.ndarray | None:
    return values[:, :, ::-1] if values.ndim == 5 and values.shape[2] > 1 else None


def scaling(page, wrong, names=("to_denoiser", "to_vae")):
    """Return a bug of the scale of latents. wrong: one of a model's functions `names` -> the wrong one"""
    return Change(replaced=tuple((page, name, wrong(getattr(page, name))) for name in names))


def left_as_it_is(function):
    return lambda m, x, latents_mean, latents_std: x


def without_statistics(function):
    """Return a function of a model whose channels have mean 0 and deviation 1."""
    return lambda m, x, mean, std: function(m, x, np.zeros_like(mean), np.ones_like(std))


def with_exchanged_statistics(function):
    return lambda m, x, latents_mean, latents_std: function(m, x, latents_std, latents_mean)


def over_all_frames(m, x):
    """Attention over the pixels of all frames at once."""
    N, C, F, H, W = x.shape
    return ATTENTION(m, x.reshape(N, C, 1, F * H, W)).reshape(x.shape)


def _resampled(m, x):
    return video(m.conv2d("resample.1", m.upsample_nearest(pictures(x)), padding=1), len(x))


def doubles_the_first_frame(m, x):
    """An upsampling whose convolution also makes the first frame, of which the second half is kept."""
    if "time_conv" in m and x.shape[2] > 1:
        x = in_turn(m.conv3d("time_conv", x, padding=CAUSAL_IN_TIME))[:, :, 1:]
    return _resampled(m, x)


def sees_the_first_frame(m, x):
    """An upsampling in which the first frame is the past of the second, where the original has zeros."""
    if "time_conv" in m and x.shape[2] > 1:
        pairs = m.conv3d("time_conv", x, padding=CAUSAL_IN_TIME)[:, :, 1:]
        x = np.concatenate([x[:, :, :1], in_turn(pairs)], axis=2)
    return _resampled(m, x)


def one_after_another(pairs):
    """The first frames of all pairs, then the second ones."""
    N, C, F, H, W = pairs.shape
    halves = pairs.reshape(N, 2, C // 2, F, H, W).transpose(0, 2, 1, 3, 4, 5)
    return halves.reshape(N, C // 2, 2 * F, H, W)


def every_other_frame(m, x):
    """A downsampling that leaves out frames instead of joining them."""
    h = video(m.conv2d("resample.1", pictures(x), stride=2, padding=(0, 1, 0, 1)), len(x))
    return h[:, :, ::2] if "time_conv" in m else h


def rows_outside_columns(x):
    """Squares of pixels with the channels that a row-major order gives. Source: flashdreams #338."""
    N, C, F, H, W = x.shape
    squares = x.reshape(N, C, F, H // 2, 2, W // 2, 2).transpose(0, 1, 4, 6, 2, 3, 5)
    return squares.reshape(N, 4 * C, F, H // 2, W // 2)


def pixels_of_rows(x):
    N, C, F, H, W = x.shape
    pixels = x.reshape(N, C // 4, 2, 2, F, H, W).transpose(0, 1, 4, 5, 2, 6, 3)
    return pixels.reshape(N, C // 4, F, 2 * H, 2 * W)


def first_again(x, number):
    return np.concatenate([*[x[:, :, :1]] * number, x], axis=2)


def empty_frames_last(x, number):
    return np.concatenate([x, *[np.zeros_like(x[:, :, :1])] * number], axis=2)


def without_last(video, number):
    """An upsampling whose first chunk is not told that it is the first. Source: Wan2.2 #125, mlx-video #38."""
    return video[:, :, : video.shape[2] - number]


def channels_in_turn(x, times):
    return np.tile(x, (1, times, 1, 1, 1))


def corners_of_squares(x, frames, side, outputs):
    """One pixel of each square instead of their mean."""
    corners = x[..., ::side, ::side].repeat(side, axis=-2).repeat(side, axis=-1)
    return AVERAGED(corners, frames, side, outputs)


ATTENTION, AVERAGED = vae_wan.attention, vae_wan.averaged
no_average, no_repeats = (with_result(shortcut, lambda y: 0 * y) for shortcut in (AVERAGED, vae_wan.repeated))

BUGS = (
    Mutant("convolutions over frames are flipped in time", Change(revalue=_flip_in_time)),
    Mutant("convolutions over frames see the later frames, not the earlier", Change(LaterFrames)),
    Mutant("convolutions over frames see a frame on each side", Change(BothSidesInTime)),
    Mutant("convolutions over frames see each frame alone", Change(FramesApart)),
    Mutant("convolutions over frames see one earlier frame, not two", Change(OneFrameKept)),
    Mutant("before the first frame stands the first again, not zeros", Change(FirstFrameRepeated)),
    Mutant("RMS norms of channels lack the factor sqrt(C)", Change(NormsOfUnitLength)),
    Mutant("latents are not normalised", scaling(vae_wan, left_as_it_is)),
    Mutant(
        "statistics of latents are not read: mean 0, deviation 1",
        scaling(vae_wan, without_statistics, ("posterior", "to_vae")),
    ),
    Mutant("mean and deviation of latents are exchanged", scaling(vae_wan, with_exchanged_statistics)),
    *replacing(
        vae_wan,
        ("attention sees the pixels of all frames", "attention", over_all_frames),
        ("the first frame is doubled as the others", "upsample", doubles_the_first_frame),
        ("doubling frames sees the first frame", "upsample", sees_the_first_frame),
        ("doubled frames stand one after another", "in_turn", one_after_another),
        ("halving frames leaves out every other", "downsample", every_other_frame),
        ("Wan 2.2's shortcuts have the first frame twice, not an empty one", "after_empty_frames", first_again),
        ("Wan 2.2's shortcuts have the empty frame last", "after_empty_frames", empty_frames_last),
        ("Wan 2.2's shortcuts take one pixel of a square", "averaged", corners_of_squares),
        ("Wan 2.2's encoder has no shortcuts around its levels", "averaged", no_average),
        ("Wan 2.2's decoder has no shortcuts around its levels", "repeated", no_repeats),
        ("Wan 2.2's shortcuts leave out the last frame, not the first", "without_first", without_last),
        ("Wan 2.2's shortcuts repeat all channels in turn", "each_channel", channels_in_turn),
    ),
    Mutant(
        "Wan 2.2's squares of pixels have rows outside columns",
        Change(replaced=((vae_wan, "to_squares", rows_outside_columns), (vae_wan, "to_pixels", pixels_of_rows))),
    ),
)
