"""Known bugs of language models as text encoders: functions that replace those of their pages."""

from collections.abc import Callable
from typing import Any

from refsd.golden.judge import Mutant
from refsd.models import mistral, qwen3, qwen_vl
from refsd.models.flux2 import MISTRAL_LAYERS
from refsd.models.language_model import component
from refsd.networks.bugs import Change, exchanging, replacing

_STATES, _STACKED = qwen3.hidden_states, component.stacked


def _other_last_norm(m, x, angle, mask, eps, final_norm=True, added=(), scale=None):
    return _STATES(m, x, angle, mask, eps, not final_norm and "norm" in m, added, scale)


def _one_state_early(*arguments, **named):
    states = _STATES(*arguments, **named)
    return (states[0], *states[:-1])


def _everywhere(states: Any) -> Change:
    return Change(replaced=tuple((page, "hidden_states", states) for page in (qwen3, qwen_vl, mistral)))


def _layers(by: int) -> Callable[..., Any]:
    """Take the context's hidden states so many layers later."""

    def stacked(hidden_states, layers=MISTRAL_LAYERS):
        return _STACKED(hidden_states, [min(max(i + by, 0), len(hidden_states) - 1) for i in layers])

    return stacked


BUGS = (
    Mutant("the last hidden state is normalised, or the reverse", _everywhere(_other_last_norm)),
    Mutant("hidden states are one layer early", _everywhere(_one_state_early)),
    *replacing(
        component,
        ("the context is of the layers before", "stacked", _layers(-1)),
        ("the context is of the layers after", "stacked", _layers(1)),
    ),
    Mutant("the MLP's gate and value are swapped", exchanging(("gate_proj", "up_proj"))),
)
