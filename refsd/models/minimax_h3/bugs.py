"""Functions of MiniMax-H3's model with bugs that a port, or a page shared with other transformers, may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import minimax_h3 as h3
from refsd.module import Module
from refsd.networks.bugs import Change, replacing, rows_and_columns_swapped, with_arguments, with_result

_POSITIONS, _MODULATION, _CONDITIONING = h3.positions, h3.modulation, h3.conditioning
_THOUSANDFOLD = with_arguments(h3.time_embedder, t=lambda t: 1000 * t)


def _media_from_zero(J, *sizes):
    ids = _POSITIONS(J, *sizes)
    return np.concatenate([ids[:J], ids[J:] - np.array([J, 0, 0])])


def _sound(change):
    """Return `positions` with those of the sound's two channels, [2, T, 3], changed."""

    def positions(J, keyframes, T, F, H, W):
        ids, end = _POSITIONS(J, keyframes, T, F, H, W), -F * H * W // h3.PATCH**2
        ids[end - 2 * T : end] = change(ids[end - 2 * T : end].reshape(2, T, 3), J).reshape(-1, 3)
        return ids

    return positions


def _last_keyframe_early(J, keyframes, T, F, H, W):
    ids, still = _POSITIONS(J, keyframes, T, F, H, W), H * W // h3.PATCH**2
    if "last" in keyframes:
        end = J + len(keyframes) * still
        ids[end - still : end, 0] -= h3.FRAME_TIME * (h3.FRAME_STEPS[(F - 1) % len(h3.FRAME_STEPS)] - 1)
    return ids


def _head_by_head(name: str, values):
    """Read a file of ComfyUI's as MiniMax's own shards, whose heads have 128 rows of q, of k and of v in turn."""
    if not name.endswith("qkv_proj.weight") or len(values) % (3 * 128):
        return None
    return values.reshape(-1, 3, 128, values.shape[1]).swapaxes(0, 1).reshape(values.shape)


def _taken_for(of, **other):
    """Return `modulation` with the runs of one (time, mode) taken for those of another."""
    change = lambda run: run._replace(**other) if (run.time, run.mode) == of else run
    return with_arguments(_MODULATION, runs=lambda runs: [change(run) for run in runs])


def _as_words(runs):
    return [run._replace(mode=h3.TEXT) for run in runs]


def _modes_inside(m: Module, vec, N, runs):
    table = m.linear("linear", vec).reshape(3, N, 6, len(h3.MODES), -1)
    six = [[table[run.time][:, i, run.mode] for run in runs] for i in range(6)]
    return h3.Modulation(*six[:3]), h3.Modulation(*six[3:])


def _scale_first(modulations):
    return [h3.Modulation(mod.scale, mod.shift, mod.gate) for mod in modulations]


def _conditioning(of_table: bool, wrong):
    """Return `conditioning` with a bug that only files with a table of times can have, or only those without."""
    return lambda m, t: wrong(m, t) if ("adaln_t_table" in m.weights) == of_table else _CONDITIONING(m, t)


def _neighbours(m: Module, x, angle):
    R = 2 * angle.shape[2]
    return np.concatenate([m.rope(np.copy(x[..., :R], order="C"), angle), x[..., R:]], axis=3)


def _last_channels(m: Module, x, angle):
    rest = x.shape[3] - 2 * angle.shape[2]
    return np.concatenate([x[..., :rest], m.rope_halves(np.copy(x[..., rest:], order="C"), angle)], axis=3)


def _value_activated(m: Module, h):
    return m.linear("fc2", m.swiglu(m.linear("fc1", h), second_gates=True))


BUGS = (
    Mutant("MiniMax-H3's q, k and v are read head by head", Change(revalue=_head_by_head)),
    *replacing(
        h3,
        ("MiniMax-H3's rows and columns are swapped", "positions", rows_and_columns_swapped(_POSITIONS)),
        ("MiniMax-H3's video and sound begin at 0, not after the words", "positions", _media_from_zero),
        ("MiniMax-H3's sound has half its speed", "positions", _sound(lambda ids, J: ids + (ids - J) * [1, 0, 0])),
        ("MiniMax-H3's channels of the sound alternate", "positions", _sound(lambda ids, J: ids.swapaxes(0, 1))),
        ("MiniMax-H3's last keyframe is where the last latent begins", "positions", _last_keyframe_early),
        ("MiniMax-H3's rows and columns are whole numbers", "axis", lambda n, area: np.arange(n // h3.PATCH)),
        ("MiniMax-H3's latent frames all last as long", "frame_times", lambda F: h3.FRAME_TIME * 4 * np.arange(F)),
        (
            "MiniMax-H3's words have the video's modulation",
            "modulation",
            _taken_for((h3.OF_VIDEO, h3.TEXT), mode=h3.VIDEO),
        ),
        (
            "MiniMax-H3's sound has the video's modulation",
            "modulation",
            _taken_for((h3.OF_AUDIO, h3.AUDIO), mode=h3.VIDEO),
        ),
        (
            "MiniMax-H3's sound has the video's time",
            "modulation",
            _taken_for((h3.OF_AUDIO, h3.AUDIO), time=h3.OF_VIDEO),
        ),
        (
            "MiniMax-H3's keyframes have the video's time",
            "modulation",
            _taken_for((h3.OF_KEYFRAMES, h3.VIDEO), time=h3.OF_VIDEO),
        ),
        ("MiniMax-H3's words of pictures have the words' modulation", "words", with_result(h3.words, _as_words)),
        ("MiniMax-H3's modulation has the modes inside shift, scale and gate", "modulation", _modes_inside),
        ("MiniMax-H3's modulation has scale before shift", "modulation", with_result(_MODULATION, _scale_first)),
        (
            "MiniMax-H3's modulation is not activated",
            "conditioning",
            _conditioning(False, lambda m, t: h3.time_embedder(m["time_embedder"], t)),
        ),
        (
            "MiniMax-H3's table of times is activated",
            "conditioning",
            _conditioning(True, lambda m, t: m.silu(h3.time_curve(m, t))),
        ),
        ("MiniMax-H3's time is multiplied by 1000", "time_embedder", _THOUSANDFOLD),
        ("MiniMax-H3 turns neighbouring channels", "turn", _neighbours),
        ("MiniMax-H3 turns the last channels of a head", "turn", _last_channels),
        ("MiniMax-H3's MLP activates the value, not the gate", "mlp", _value_activated),
    ),
)
