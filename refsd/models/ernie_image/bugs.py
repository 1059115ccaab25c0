"""Functions of Ernie-Image's model with bugs that a port, or a page shared with other transformers, may have."""

import numpy as np

from refsd.models import ernie_image
from refsd.module import Module
from refsd.networks.bugs import replacing, rows_and_columns_swapped, with_arguments

_IDS, _MODULATION, _LAST = ernie_image.token_ids, ernie_image.modulation, ernie_image.final_norm


def _picture_after_the_padding(lengths, J, H, W):
    return _IDS(np.full(len(lengths), J), J, H, W)


def _words_from_1(lengths, J, H, W):
    ids = _IDS(lengths, J, H, W)
    return ids + np.pad(np.tile([1, 0, 0], (J, 1)), ((H * W, 0), (0, 0)))


def _cosines_first(m: Module, timesteps):
    waves = m.timestep_embedding(timesteps, m.shape("linear_1.weight")[1], scale=1000.0)
    return m.linear("linear_2", m.silu(m.linear("linear_1", waves)))


def _not_activated(m: Module, temb):
    return np.split(m.linear("adaLN_modulation.1", temb), 6, axis=-1)


def _scale_first(m: Module, temb):
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = _MODULATION(m, temb)
    return scale, shift, gate, mlp_scale, mlp_shift, mlp_gate


def _value_activated(m: Module, h):
    return m.linear("linear_fc2", m.multiply(m.gelu(m.linear("up_proj", h)), m.linear("gate_proj", h)))


def _gelu_tanh(m: Module, h):
    return m.linear("linear_fc2", m.multiply(m.linear("up_proj", h), m.gelu_tanh(m.linear("gate_proj", h))))


def _last_activated(m: Module, h, temb, eps):
    return _LAST(m, h, m.silu(temb), eps)


def _last_shift_first(m: Module, h, temb, eps):
    shift, scale = np.split(m.linear("linear", temb), 2, axis=-1)
    return m.modulate(m.layer_norm(None, h, eps), shift, scale)


BUGS = replacing(
    ernie_image,
    ("Ernie-Image turns both channels of a pair by one angle", "turn", lambda m, x, angle: m.rope_halves(x, angle)),
    ("Ernie-Image turns neighbouring channels", "turn", lambda m, x, angle: m.rope(x, angle)),
    ("Ernie-Image's picture is at 0 on the words' axis", "token_ids", with_arguments(_IDS, lengths=np.zeros_like)),
    ("Ernie-Image's picture follows the padding, not the prompt", "token_ids", _picture_after_the_padding),
    ("Ernie-Image's words count from 1", "token_ids", _words_from_1),
    ("Ernie-Image's rows and columns are swapped", "token_ids", rows_and_columns_swapped(_IDS)),
    ("Ernie-Image attends to the padding", "seen", lambda lengths, J, pictures: None),
    ("Ernie-Image's time has cosines first", "time_embedding", _cosines_first),
    ("Ernie-Image's modulation is not activated", "modulation", _not_activated),
    ("Ernie-Image's modulation has scale before shift", "modulation", _scale_first),
    ("Ernie-Image's MLP activates the value, not the gate", "mlp", _value_activated),
    ("Ernie-Image's MLP has the tanh form of GELU", "mlp", _gelu_tanh),
    ("Ernie-Image's last norm activates the time", "final_norm", _last_activated),
    ("Ernie-Image's last norm has shift before scale", "final_norm", _last_shift_first),
)
