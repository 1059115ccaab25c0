"""Functions of Anima's text conditioner with bugs that a port may have."""

import numpy as np

from refsd.models import anima_conditioner as page
from refsd.module import Module
from refsd.networks.bugs import replacing

_ATTENTION = page.attention


def _not_rotated(m: Module, tokens, head_dim):
    return np.zeros((1, tokens, head_dim // 2))


def _keys_not_rotated(m: Module, h, context, mask, angle, context_angle):
    """Rotate the keys of self-attention alone, as Cosmos' transformer does."""
    turned = context_angle if context is h else np.zeros_like(context_angle)
    return _ATTENTION(m, h, context, mask, angle, turned)


def _causal(m: Module, h, context, mask, angle, context_angle):
    """Mask later tokens in self-attention, as language models do."""
    if context is h:
        later = np.where(np.tri(h.shape[1], dtype=bool), 0.0, -np.inf)[None, None]
        mask = later if mask is None else mask + later
    return _ATTENTION(m, h, context, mask, angle, context_angle)


def _last_repeated(h, length):
    return np.concatenate([h, *[h[:, -1:]] * max(0, length - h.shape[1])], axis=1)


def _padded_in_front(h, length):
    return np.pad(h, ((0, 0), (max(0, length - h.shape[1]), 0), (0, 0)))


def _gelu_approximated(m: Module, h):
    return m.linear("2", m.gelu_tanh(m.linear("0", h)))


BUGS = replacing(
    page,
    ("Anima's conditioner rotates neither queries nor keys", "angles", _not_rotated),
    ("Anima's conditioner does not rotate the keys of Qwen3's tokens", "attention", _keys_not_rotated),
    ("Anima's conditioner masks later tokens", "attention", _causal),
    ("Anima's conditioner pads with its last token", "padded", _last_repeated),
    ("Anima's conditioner pads in front", "padded", _padded_in_front),
    ("Anima's conditioner has GELU's tanh form", "mlp", _gelu_approximated),
)
