"""Known bugs of language models as text encoders: functions that replace those of their pages."""

from types import ModuleType
from typing import Any

from refsd.models import mistral, qwen3, qwen_vl

_STATES = qwen3.hidden_states


def _other_last_norm(m, x, angle, mask, eps, final_norm=True):
    return _STATES(m, x, angle, mask, eps, not final_norm and "norm" in m)


def _one_state_early(*arguments, **named):
    states = _STATES(*arguments, **named)
    return (states[0], *states[:-1])


def _everywhere(states: Any) -> tuple[tuple[ModuleType, str, Any], ...]:
    return tuple((page, "hidden_states", states) for page in (qwen3, qwen_vl, mistral))


# Name of the bug -> (model's module, function's name, replacement) of each function.
ROWS = (
    ("the last hidden state is normalised, or the reverse", _everywhere(_other_last_norm)),
    ("hidden states are one layer early", _everywhere(_one_state_early)),
    (
        "M-RoPE's sections are interleaved, or the reverse",
        ((qwen_vl, "in_turn", qwen_vl.interleaved), (qwen_vl, "interleaved", qwen_vl.in_turn)),
    ),
)
