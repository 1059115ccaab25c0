"""Functions of Gemma 2's model with bugs that its ports have had."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from refsd.kernels.attention_softcap import attention_softcap
from refsd.kernels.rms_norm import rms_norm
from refsd.models import gemma2
from refsd.networks.bugs import replacing

_NORM = gemma2.norm


def _attention(**told: float) -> Callable[..., Any]:
    """Return the attention with other parameters than it is given."""

    @wraps(attention_softcap)
    def attend(q, k, v, scale, cap, mask=None):
        return attention_softcap(q, k, v, **{"scale": scale, "cap": cap, **told}, mask=mask)

    return attend


def _as_stored(m, name, x, eps):
    weight = m.weight(f"{name}.weight")
    return m.apply(rms_norm, x.reshape(-1, x.shape[-1]), weight, eps=eps).reshape(x.shape)


def _last_as_stored(m, name, x, eps):
    return (_as_stored if name == "norm" else _NORM)(m, name, x, eps)


BUGS = replacing(
    gemma2,
    ("Gemma 2's scores have no limit", "attention_softcap", _attention(cap=1e30)),
    ("Gemma 2's scores have the limit of its logits, 30", "attention_softcap", _attention(cap=30.0)),
    (
        "Gemma 2's scale is that of width / heads, 1/sqrt(288), not of a head's channels",
        "attention_softcap",
        _attention(scale=288**-0.5),
    ),
    ("Gemma 2's norms lack the 1 of their weights", "norm", _as_stored),
    ("Gemma 2's last norm lacks the 1 of its weight", "norm", _last_as_stored),
)
