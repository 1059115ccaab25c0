"""Functions of Krea 2's model with bugs that a port, or a page shared with Qwen-Image or FLUX, may have."""

from functools import partial, wraps

import numpy as np

from refsd.kernels.sigmoid import sigmoid
from refsd.models import krea2
from refsd.module import Module
from refsd.networks.bugs import replacing, rows_and_columns_swapped, with_arguments

_IDS, _MASK, _LAST = krea2.token_ids, krea2.text_mask, krea2.final_layer
_fusion = partial(with_arguments, krea2.text_fusion)


def _words_numbered(J, H, W):
    ids = _IDS(J, H, W)
    return ids + np.pad(np.repeat(np.arange(J)[:, None], 3, axis=1), ((0, len(ids) - J), (0, 0)))


def _from_the_centre(J, H, W):
    return _IDS(J, H, W) - np.pad(np.tile([0, H // 4, W // 4], (H * W // 4, 1)), ((J, 0), (0, 0)))


def _fusion_unmasked(context_mask, pictures):
    return _MASK(context_mask, pictures) if pictures else None


def _states_backwards(context):
    return np.ascontiguousarray(context[:, :, ::-1])


def _tokens_of_a_state_together(context):
    """Read [N, J, S, E] as if it were [N, S, J, E]."""
    N, J, S, E = context.shape
    return np.ascontiguousarray(context.reshape(N, S, J, E).swapaxes(1, 2))


def _weight_as_it_is(m: Module, name, x, eps):
    return m.rms_norm(f"{name}.weight", x, eps)


@wraps(sigmoid)  # whose name its taps have
def _ungated(x):
    return np.ones_like(x)


@wraps(sigmoid)
def _silu(x):
    return x * sigmoid(x)


def _value_activated(m: Module, h):
    return m.linear("down", m.multiply(m.silu(m.linear("up", h)), m.linear("gate", h)))


def _last_shift_first(m: Module, h, temb, eps):
    own = m.add(temb[:, None], m.weight("scale_shift_table"))
    shift, scale = np.ascontiguousarray(own[:, 0]), np.ascontiguousarray(own[:, 1])
    return m.linear("linear", m.modulate(krea2.norm(m, "norm", h, eps), shift, scale))


BUGS = replacing(
    krea2,
    ("Krea 2's words are numbered, not all at 0", "token_ids", _words_numbered),
    ("Krea 2's rows and columns are swapped", "token_ids", rows_and_columns_swapped(_IDS)),
    ("Krea 2's rows and columns count from the centre, as Qwen-Image's", "token_ids", _from_the_centre),
    ("Krea 2's fusion of the text sees the padding", "text_mask", _fusion_unmasked),
    ("Krea 2's hidden states stand in the reverse order", "text_fusion", _fusion(context=_states_backwards)),
    ("Krea 2's hidden states stand before the tokens", "text_fusion", _fusion(context=_tokens_of_a_state_together)),
    ("Krea 2's norms have their weights without the 1", "norm", _weight_as_it_is),
    ("Krea 2's attention is not gated", "sigmoid", _ungated),
    ("Krea 2's attention is gated by SiLU", "sigmoid", _silu),
    ("Krea 2's MLP activates the value, not the gate", "feed_forward", _value_activated),
    ("Krea 2's last layer does not see the time", "final_layer", with_arguments(_LAST, temb=np.zeros_like)),
    ("Krea 2's last layer has shift before scale", "final_layer", _last_shift_first),
)
