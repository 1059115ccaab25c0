"""Functions of Anima's model with bugs that a port, or a page shared with other transformers, may have."""

import numpy as np

from refsd.models import anima
from refsd.module import Module
from refsd.networks.bugs import replacing, with_arguments

_ANGLES, _MODULATION = anima.rope_angles, anima.modulation
_LOW_RANK_ALONE = with_arguments(_MODULATION, temb=np.zeros_like)


def _rows_and_columns_swapped(m: Module, rows, columns, head_dim, rope_scale):
    angle = _ANGLES(m, columns, rows, head_dim, rope_scale)
    return angle.reshape(columns, rows, -1).swapaxes(0, 1).reshape(angle.shape)


def _masked_everywhere(x):
    return np.concatenate([x, np.ones_like(x[:, :1])], axis=1)


def _mask_first(x):
    return np.concatenate([np.zeros_like(x[:, :1]), x], axis=1)


def _packed_as_the_input(tokens, H, W):
    """Take a token's channels as (channel, row, column), as those of the input are."""
    squares = tokens.reshape(len(tokens), H // 2, W // 2, -1, 2, 2).transpose(0, 3, 1, 4, 2, 5)
    return np.ascontiguousarray(squares).reshape(len(tokens), -1, H, W)


def _time_alone(m: Module, vec, temb, parts):
    return np.split(temb[:, : temb.shape[1] * parts // 3], parts, axis=-1)


def _scale_first(m: Module, vec, temb, parts):
    shift, scale, *gate = _MODULATION(m, vec, temb, parts)
    return [scale, shift, *gate]


def _gelu_approximated(m: Module, h):
    return m.linear("layer2", m.gelu_tanh(m.linear("layer1", h)))


BUGS = replacing(
    anima,
    ("Anima's rotary frequencies lack their NTK factors", "ntk_factor", lambda scale, dim: 1.0),
    ("Anima's NTK factors lack their exponent", "ntk_factor", lambda scale, dim: scale),
    ("Anima's rows and columns are swapped", "rope_angles", _rows_and_columns_swapped),
    ("Anima's padding mask is 1", "with_padding_mask", _masked_everywhere),
    ("Anima's padding mask is the first channel", "with_padding_mask", _mask_first),
    ("Anima's last tokens are unpacked in the order of the first", "unpack", _packed_as_the_input),
    ("Anima's modulations lack what the time gives to all blocks", "modulation", _LOW_RANK_ALONE),
    ("Anima's modulations lack the blocks' own part", "modulation", _time_alone),
    ("Anima's modulations have the scale before the shift", "modulation", _scale_first),
    ("Anima's MLP has GELU's tanh form", "mlp", _gelu_approximated),
)
