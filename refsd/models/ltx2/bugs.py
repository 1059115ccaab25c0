"""Functions of LTX-2's model with bugs that its ports had, or that a shared page may have."""

import ml_dtypes
import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import ltx2
from refsd.module import Module
from refsd.networks.bugs import Change, dropping, replacing, rows_and_columns_swapped, with_arguments, with_result

_ANGLES, _POSITIONS, _TABLE = ltx2.angles, ltx2.positions, ltx2.table
_ACROSS, _ATTENTION = ltx2.across, ltx2.attention


def _heads_alike(m: Module, places, extent, channels, theta, heads):
    return np.repeat(_ANGLES(m, places, extent, channels // heads, theta, 1), heads, axis=2)


def _in_order(reorder):
    """Return `angles` whose turns of the axes, [L, frequencies, axes], and the rest before them are changed."""

    def angles(m: Module, places, extent, channels, theta, heads):
        right = _ANGLES(m, places, extent, channels, theta, 1)
        rest = channels // 2 % places.shape[1]
        turns = right[0, :, 0, rest:].reshape(len(places), -1, places.shape[1])
        return reorder(right[0, :, 0, :rest], turns).reshape(1, len(places), heads, -1)

    return angles


def _axes_one_by_one(rest, turns):
    return np.concatenate([rest, turns.swapaxes(1, 2).reshape(len(rest), -1)], axis=1)


def _rest_last(rest, turns):
    return np.concatenate([turns.reshape(len(rest), -1), rest], axis=1)


def _not_centred(m: Module, places, extent, *more):
    """The places of which a share of the extent, doubled and less 1, is the share itself"""
    return _ANGLES(m, (places + np.array(extent)) / 2, extent, *more)


def _powers_in_float32(m: Module, places, extent, channels, theta, heads):
    """The frequencies are powers in float32, where they should be those of float64."""
    L, axes = places.shape
    powers = np.float32(theta) ** np.linspace(0, 1, channels // (2 * axes), dtype=np.float32)
    share = (2 * places / np.array(extent) - 1).astype(np.float32)
    turns = share[:, None] * (powers * np.float32(np.pi / 2))[:, None]
    rest = np.zeros((L, channels // 2 - turns[0].size), np.float32)
    return np.concatenate([rest, turns.reshape(L, -1)], axis=1).reshape(1, L, heads, -1)


def _rounded(dtype):
    return with_result(_POSITIONS, lambda ids: ids.astype(dtype).astype(np.float64))


def _begin(n, steps):
    return np.maximum(np.arange(n) * steps + 1.0 - steps, 0)


def _table_of(part: str, change):
    """Return `table` with the modulations that are read from weights with `part` in their name changed."""

    def table(m: Module, name, time):
        mod = _TABLE(m, name, time)
        return change(mod) if part in name else mod

    return table


def _scale_first(mod):
    """Shift and scale begin every three; the five between the streams are as they should be."""
    order = {2: (1, 0), 6: (1, 0, 2, 4, 3, 5), 9: (1, 0, 2, 4, 3, 5, 7, 6, 8)}
    return [mod[i] for i in order.get(len(mod), range(len(mod)))]


def _text_after_self(mod):
    return mod[:3] + mod[6:] + mod[3:6]


def _after_the_other(m: Module, v, a, *more):
    seen, _ = _ACROSS(m, v, a, *more)
    return seen, _ACROSS(m, seen, a, *more)[1]


def _skipped(m: Module, x, *more):
    values_only = len(more) == 6 and more[5]
    return np.zeros_like(x) if values_only else _ATTENTION(m, x, *more)


def _turned_to_the_text(keys: bool, named: str):
    """Turn the queries that seek a text, and its keys, by the angles with which their stream saw itself before."""
    before = []

    def attention(m: Module, x, other, head_dim, angle=None, other_angle=None, split=True, values_only=False):
        if angle is not None:
            before[:] = angle, split
        elif f".{named}attn2" in m.prefix and x.shape[1] == before[0].shape[1]:
            still = np.zeros((1, other.shape[1], *before[0].shape[2:]))
            still[:, : before[0].shape[1]] = keys * before[0][:, : other.shape[1]]
            return _ATTENTION(m, x, other, head_dim, before[0], still, before[1], values_only)
        return _ATTENTION(m, x, other, head_dim, angle, other_angle, split, values_only)

    return attention


def _one_time(inputs):
    return {**inputs, "audio_timesteps": inputs["timesteps"]} if "audio_context" in inputs else None


BUGS = (
    Mutant("LTX-2's sound has the video's time", Change(inputs=_one_time)),
    Mutant("LTX-2's frames have the step's time", dropping("frame_timesteps")),
    *replacing(
        ltx2,
        (
            "LTX-2's streams see each other by the other time of the two",
            "between",
            with_arguments(ltx2.between, cross_timestep=lambda cross: not cross),
        ),
        ("LTX-2's heads have the same frequencies", "angles", _heads_alike),
        ("LTX-2's frequencies are those of one axis after the other", "angles", _in_order(_axes_one_by_one)),
        ("LTX-2's last channels are not turned, not the first", "angles", _in_order(_rest_last)),
        ("LTX-2's positions are not centred", "angles", _not_centred),
        ("LTX-2's frequencies are powers in float32", "angles", _powers_in_float32),
        ("LTX-2's rows and columns are swapped", "positions", rows_and_columns_swapped(_POSITIONS)),
        ("LTX-2's frames have one rate", "positions", with_arguments(_POSITIONS, fps=lambda fps: ltx2.FPS)),
        *(
            (f"LTX-2's positions are rounded to {name}", "positions", _rounded(dtype))
            for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16))
        ),
        ("LTX-2's positions are where tokens begin", "middle", _begin),
        ("LTX-2's first latent is as long as the others", "middle", lambda n, steps: steps * (np.arange(n) + 0.5)),
        ("LTX-2's RoPE turns the other pairs", "turn", with_arguments(ltx2.turn, split=lambda split: not split)),
        (
            "LTX-2's modulation between the streams has shift before scale",
            "table",
            _table_of("a2v_ca", lambda mod: [mod[i] for i in (1, 0, 3, 2, 4)]),
        ),
        (
            "LTX-2's modulations of the two directions are exchanged",
            "table",
            _table_of("a2v_ca", lambda mod: [mod[i] for i in (2, 3, 0, 1, 4)]),
        ),
        (
            "LTX-2's modulation has scale before shift",
            "table",
            _table_of("scale_shift_table", _scale_first),
        ),
        (
            "LTX-2.3's texts are not modulated",
            "table",
            _table_of("prompt_", lambda mod: [np.zeros_like(each) for each in mod]),
        ),
        (
            "LTX-2.3's modulation has the text's part before the MLP's",
            "table",
            _table_of("scale_shift_table", lambda mod: _text_after_self(mod) if len(mod) == 9 else mod),
        ),
        ("LTX-2's sound sees the video that has seen it", "across", _after_the_other),
        (
            "LTX-2's gates between the streams have a thousandth of the time",
            "cross_times",
            with_arguments(ltx2.cross_times, gate_scale=lambda scale: scale / 1000),
        ),
        ("LTX-2.3's gates of heads are 0..1", "gates", with_result(ltx2.gates, lambda y: 0.5 * y)),
        *(
            (f"LTX-2's rotary angles turn {what} to the text, too", "attention", _turned_to_the_text(keys, name))
            for what, keys, name in (
                ("the video's queries", False, ""),
                ("the sound's queries", False, "audio_"),
                ("the video's queries and keys", True, ""),
            )
        ),
        ("LTX-2's blocks without attention skip its values, too", "attention", _skipped),
    ),
)
