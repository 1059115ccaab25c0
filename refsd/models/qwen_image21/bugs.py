"""Functions of Qwen-Image 2.1's model with bugs that a port, or a page shared with Qwen-Image, may have."""

from functools import wraps

import numpy as np

from refsd.kernels.tanh import tanh
from refsd.models import qwen_image21
from refsd.models.qwen_image21 import Modulation
from refsd.module import Module
from refsd.networks.bugs import replacing

_IDS, _BY_TOKEN, _MODULATIONS = qwen_image21.token_ids, qwen_image21.by_token, qwen_image21.modulations
_LAST = qwen_image21.norm_out


def _from_the_corner(J, H, W):
    return _IDS(J, H, W) + np.pad(np.tile([0, H - H // 2, W - W // 2], (H * W, 1)), ((J, 0), (0, 0)))


def _rows_and_columns_swapped(J, H, W):
    return _IDS(J, H, W)[:, [0, 2, 1]]


def _picture_first(J, H, W):
    """Number as Qwen-Image does: the picture at 0, the words after half of it."""
    ids = _IDS(J, H, W)
    return ids + np.concatenate([np.full((J, 3), max(H, W) // 2), np.tile([-J, 0, 0], (H * W, 1))])


def _words_on_one_axis(J, H, W):
    return _IDS(J, H, W) * np.concatenate([np.tile([1, 0, 0], (J, 1)), np.ones((H * W, 3), int)])


def _picture_in_turn(J, H, W):
    """Advance the picture's first axis with each token."""
    ids = _IDS(J, H, W)
    ids[J:, 0] += np.arange(H * W)
    return ids


def _words_at_the_sampler_s_time(knob):
    return knob[:-1], knob[:-1]


def _all_at_time_0(knob):
    return (np.repeat(knob[-1:], len(knob) - 1, axis=0),) * 2


@wraps(tanh)  # whose name its taps have
def _gate_as_it_is(x):
    return x


def _gate_first(m: Module, vec):
    return tuple(Modulation(gate, scale) for scale, gate in _MODULATIONS(m, vec))


def _branches_swapped(m: Module, vec):
    return _MODULATIONS(m, vec)[::-1]


def _words_see_each_other(m: Module, q, k, v, context_mask, J):
    words = m.attention(q[:, :J], k[:, :J], v[:, :J], mask=qwen_image21.seen(context_mask, 0))
    picture = m.attention(q[:, J:], k, v, mask=qwen_image21.seen(context_mask, q.shape[1] - J))
    return np.concatenate([words, picture], axis=1)


def _words_see_the_picture(m: Module, q, k, v, context_mask, J):
    mask = qwen_image21.seen(context_mask, q.shape[1] - J)
    return np.concatenate([m.attention(part, k, v, mask=mask) for part in (q[:, :J], q[:, J:])], axis=1)


def _causal_throughout(m: Module, q, k, v, context_mask, J):
    words = m.attention(q[:, :J], k[:, :J], v[:, :J], mask=qwen_image21.seen(context_mask, 0), diagonal=0)
    mask = qwen_image21.seen(context_mask, q.shape[1] - J)
    return np.concatenate([words, m.attention(q[:, J:], k, v, mask=mask, diagonal=J)], axis=1)


def _weight_as_it_is(m: Module, context, eps):
    h = m.rms_norm("text_norm.weight", context, eps)
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", h)))


def _not_normalised(m: Module, context, eps):
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", context)))


def _value_activated(m: Module, h):
    return m.linear("out", m.swiglu(m.linear("gate_up", h), second_gates=True))


def _last_at_time_0(m: Module, h, vec, eps):
    return _LAST(m, h, np.repeat(vec[-1:], len(vec), axis=0), eps)


BUGS = replacing(
    qwen_image21,
    ("Qwen-Image 2.1's rows and columns count from the corner", "token_ids", _from_the_corner),
    ("Qwen-Image 2.1's rows and columns are swapped", "token_ids", _rows_and_columns_swapped),
    ("Qwen-Image 2.1's picture is numbered before the words, as Qwen-Image's", "token_ids", _picture_first),
    ("Qwen-Image 2.1's words are on one axis", "token_ids", _words_on_one_axis),
    ("Qwen-Image 2.1's picture advances the axis that it should freeze", "token_ids", _picture_in_turn),
    ("Qwen-Image 2.1's words have the sampler's time", "by_token", _words_at_the_sampler_s_time),
    ("Qwen-Image 2.1's picture is modulated as at time 0", "by_token", _all_at_time_0),
    ("Qwen-Image 2.1's gates lack their tanh", "tanh", _gate_as_it_is),
    ("Qwen-Image 2.1's modulation has the gate before the scale", "modulations", _gate_first),
    ("Qwen-Image 2.1's modulations of attention and MLP are swapped", "modulations", _branches_swapped),
    ("Qwen-Image 2.1's words see the words after them", "block_causal", _words_see_each_other),
    ("Qwen-Image 2.1's words see the picture", "block_causal", _words_see_the_picture),
    ("Qwen-Image 2.1's picture is causal inside", "block_causal", _causal_throughout),
    ("Qwen-Image 2.1's text norm has its weight without the 1", "txt_in", _weight_as_it_is),
    ("Qwen-Image 2.1's text is not normalised", "txt_in", _not_normalised),
    ("Qwen-Image 2.1's MLP activates the value, not the gate", "swiglu", _value_activated),
    ("Qwen-Image 2.1's last layer is modulated as at time 0", "norm_out", _last_at_time_0),
)
