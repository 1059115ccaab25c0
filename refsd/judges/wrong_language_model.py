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


# Each as Change.replaced of model_mutants.
OTHER_LAST_NORM = _everywhere(_other_last_norm)
ONE_STATE_EARLY = _everywhere(_one_state_early)
OTHER_SECTIONS = (qwen_vl, "in_turn", qwen_vl.interleaved), (qwen_vl, "interleaved", qwen_vl.in_turn)
