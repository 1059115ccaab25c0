"""Bugs of Qwen-Image 2.1's autoencoder: what its ports make of a video autoencoder that sees one frame."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import vae_qwen_image21
from refsd.models.vae_wan.bugs import (
    NormsOfUnitLength,
    SeparateNorms,
    left_as_it_is,
    scaling,
    with_exchanged_statistics,
    without_statistics,
)
from refsd.networks.bugs import Change, replacing, with_result

_AVERAGED = vae_qwen_image21.averaged
_NO_AVERAGES, _NO_REPEATS = (
    with_result(shortcut, lambda y: 0 * y) for shortcut in (_AVERAGED, vae_qwen_image21.repeated)
)


class HalfNorms(SeparateNorms):
    """RMS norms of channels whose sums of squares are float16's. Source: vllm-omni #7768."""

    def rms_norm_channels(self, x, weight, eps=1e-12):
        squares = np.sum(np.square(x.astype(np.float16)), axis=1, dtype=np.float16, keepdims=True)
        length = np.maximum(np.sqrt(squares.astype(x.dtype)), eps)
        return x / length * (weight * len(weight) ** 0.5).reshape(-1, *[1] * (x.ndim - 2)).astype(x.dtype)


def _without_the_empty_frame(x, frames, side, outputs):
    return _AVERAGED(x, frames if x.shape[1] * side * side % outputs else 1, side, outputs)


def _empty_frame_last(squares, frames):
    return np.concatenate([squares, *[np.zeros_like(squares)] * (frames - 1)], axis=2)


def _corners_of_squares(x, frames, side, outputs):
    """Keep one pixel of each square instead of their mean."""
    corners = x[:, :, ::side, ::side]
    return _AVERAGED(corners.repeat(side, axis=2).repeat(side, axis=3), frames, side, outputs)


def _channels_in_turn(x, times):
    return np.tile(x, (1, times, 1, 1))


BUGS = (
    Mutant("Qwen-Image 2.1's norms lack the factor sqrt(C)", Change(NormsOfUnitLength)),
    Mutant("Qwen-Image 2.1's norms sum squares in float16", Change(HalfNorms)),
    Mutant("Qwen-Image 2.1's latents are not normalised", scaling(vae_qwen_image21, left_as_it_is)),
    Mutant(
        "mean and deviation of Qwen-Image 2.1's latents are exchanged",
        scaling(vae_qwen_image21, with_exchanged_statistics),
    ),
    Mutant(
        "statistics of Qwen-Image 2.1's latents are not read: mean 0, deviation 1",
        scaling(vae_qwen_image21, without_statistics),
    ),
    *replacing(
        vae_qwen_image21,
        ("Qwen-Image 2.1's shortcuts average without the empty frame", "averaged", _without_the_empty_frame),
        ("Qwen-Image 2.1's shortcuts have the empty frame last", "after_empty_frames", _empty_frame_last),
        ("Qwen-Image 2.1's shortcuts take one pixel of a square", "averaged", _corners_of_squares),
        ("Qwen-Image 2.1's encoder has no shortcuts around its levels", "averaged", _NO_AVERAGES),
        ("Qwen-Image 2.1's decoder has no shortcuts around its levels", "repeated", _NO_REPEATS),
        ("Qwen-Image 2.1's shortcuts keep the first frame", "last_frame", lambda video: video[:, :, 0]),
        ("Qwen-Image 2.1's shortcuts repeat all channels in turn", "each_channel", _channels_in_turn),
    ),
)
