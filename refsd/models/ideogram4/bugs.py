"""Functions of Ideogram 4's model with bugs that a port, or a page shared with others, may have."""

import numpy as np

from refsd.kernels.tanh import tanh
from refsd.models import ideogram4
from refsd.module import Module
from refsd.networks.bugs import replacing, with_result

_POSITIONS = ideogram4.positions
_mlp_first = lambda parts: (*parts[2:], *parts[:2])


def _picture(change):
    """Return `positions` with those of the picture, [N, L, 3], changed."""

    def positions(there, H, W):
        ids = _POSITIONS(there, H, W)
        ids[:, -H * W :] = change(ids[:, -H * W :])
        return ids

    return positions


def _words_on_one_axis(there, H, W):
    ids = _POSITIONS(there, H, W)
    ids[:, : -H * W, 1:] = 0
    return ids


def _sections_in_turn(head_dim, sections):
    axis = np.repeat([0, 1, 2], sections)[: head_dim // 2]
    return np.pad(axis, (0, head_dim // 2 - len(axis)))


def _axes_to_the_end(head_dim, sections):
    return np.arange(head_dim // 2) % 3


def _gates_not_bounded(m: Module, knobs):
    return np.split(m.linear("adaln_modulation", knobs), 4, axis=-1)


def _gate_first(m: Module, knobs):
    gate, scale, mlp_gate, mlp_scale = np.split(m.linear("adaln_modulation", knobs), 4, axis=-1)
    return scale, m.apply(tanh, gate), mlp_scale, m.apply(tanh, mlp_gate)


def _waves(freq_shift=1.0, scale=1e4, sin_first=True):
    """Return `t_embedding` with other waves. The defaults are the right ones."""

    def t_embedding(m: Module, timesteps):
        waves = m.timestep_embedding(
            timesteps, m.shape("mlp_in.weight")[1], freq_shift=freq_shift, scale=scale, sin_first=sin_first
        )
        return m.linear("mlp_out", m.silu(m.linear("mlp_in", waves)))

    return t_embedding


def _scale_without_1(m: Module, name, h, scale, eps):
    return m.multiply(m.rms_norm_apart(f"{name}.weight", h, eps), scale[:, None])


def _last_not_activated(m: Module, h, knobs):
    scale = m.add(1, m.linear("adaln_modulation", knobs))
    return m.linear("linear", m.multiply(m.layer_norm(None, h, ideogram4.LAST_EPS), scale[:, None]))


def _value_activated(m: Module, h):
    return m.linear("w2", m.multiply(m.linear("w1", h), m.silu(m.linear("w3", h))))


BUGS = replacing(
    ideogram4,
    ("Ideogram 4's call without a prompt has the first network", "network_of", lambda m, there, context: m),
    ("Ideogram 4's rows and columns are swapped", "positions", _picture(lambda ids: ids[..., [0, 2, 1]])),
    ("Ideogram 4's picture starts at 0", "positions", _picture(lambda ids: ids - ideogram4.PICTURE_START)),
    ("Ideogram 4's picture has time 0", "positions", _picture(lambda ids: ids * np.array([0, 1, 1]))),
    ("Ideogram 4's words stand on one axis", "positions", _words_on_one_axis),
    ("Ideogram 4's frequencies are split in blocks", "axes", _sections_in_turn),
    ("Ideogram 4's frequencies take the axes in turn to the end", "axes", _axes_to_the_end),
    ("Ideogram 4 attends to the padding", "segments", lambda there, pictures: None),
    ("Ideogram 4's gates have no tanh", "modulation", _gates_not_bounded),
    ("Ideogram 4's modulation has the gate first", "modulation", _gate_first),
    ("Ideogram 4's modulation has the MLP first", "modulation", with_result(ideogram4.modulation, _mlp_first)),
    ("Ideogram 4's time has cosines first", "t_embedding", _waves(sin_first=False)),
    ("Ideogram 4's time has the frequencies of a half", "t_embedding", _waves(freq_shift=0.0)),
    ("Ideogram 4's time is in thousandths", "t_embedding", _waves(scale=1e3)),
    ("Ideogram 4 scales without the 1", "scaled", _scale_without_1),
    ("Ideogram 4's last scale is activated once", "final_layer", _last_not_activated),
    (
        "Ideogram 4's words are not normalised",
        "words",
        lambda m, context, there: m.linear("llm_cond_proj", context),
    ),
    ("Ideogram 4's MLP activates the value, not the gate", "feed_forward", _value_activated),
)
