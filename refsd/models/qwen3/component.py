"""The component of Qwen3."""

from refsd.models.flux2 import QWEN3_LAYERS
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, context, vocabulary
from refsd.models.qwen3 import qwen3
from refsd.module import Module
from refsd.networks.component import Component


def _qwen3(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return context(qwen3(m, input_ids, attention_mask, **given), layers, QWEN3_LAYERS)


COMPONENTS = {
    "qwen3": Component(
        "qwen3",
        _qwen3,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"layers": [], "theta": 1e6, "eps": 1e-6},
        vocabulary,
        also={"context": "N L 3D"},
    ),
}
