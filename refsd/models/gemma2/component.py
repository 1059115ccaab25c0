"""The component of Gemma 2."""

from refsd.models.gemma2 import CAP, HEAD_DIM, WINDOW, gemma2
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, context, with_head_dim
from refsd.module import Module
from refsd.networks.component import Component


def _gemma2(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return context(gemma2(m, input_ids, attention_mask, **given), layers)


COMPONENTS = {
    "gemma2": Component(
        "gemma2",
        _gemma2,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {
            "head_dim": HEAD_DIM,
            "layers": [],
            "theta": 1e4,
            "eps": 1e-6,
            "scalar": float(HEAD_DIM),
            "cap": CAP,
            "window": WINDOW,
        },
        with_head_dim,
    ),
}
