"""Known bugs of what a text encoder is told and what is taken from it: masks of padding, hidden states."""

from collections.abc import Callable, Mapping

import numpy as np

from refsd.components import text

Inputs = Mapping[str, np.ndarray]

_STACKED, _MISTRAL = text.stacked, text.MISTRAL_LAYERS


def _masks(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change the mask of the text; None where there is none."""

    def changed(inputs):
        name = next((name for name in ("attention_mask", "context_mask") if name in inputs), None)
        return {**inputs, name: change((np.asarray(inputs[name]) != 0).astype(int))} if name else None

    return changed


def _one_more(mask: np.ndarray) -> np.ndarray:
    """Unhide the first hidden token of each row."""
    return mask + ((mask == 0) & (np.cumsum(mask == 0, axis=1) == 1))


def _one_less(mask: np.ndarray) -> np.ndarray:
    """Hide the last shown token of each row."""
    return 1 - _one_more(1 - mask[:, ::-1])[:, ::-1]


def _layers(by: int) -> Callable:
    """Take the context's hidden states so many layers later."""

    def stacked(hidden_states, layers=_MISTRAL):
        return _STACKED(hidden_states, [min(max(i + by, 0), len(hidden_states) - 1) for i in layers])

    return stacked


# (name, change of the inputs)
MASKS = (
    ("the attention mask is inverted: padding for text", _masks(lambda mask: 1 - mask)),
    ("the mask has one token more", _masks(_one_more)),
    ("the mask has one token less", _masks(_one_less)),
)
# (name, replaced functions)
LAYERS = (
    ("the context is of the layers before", ((text, "stacked", _layers(-1)),)),
    ("the context is of the layers after", ((text, "stacked", _layers(1)),)),
)
