"""The component of Mistral Small."""

from refsd.models.flux2 import MISTRAL_LAYERS
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, context, with_head_dim
from refsd.models.mistral import mistral
from refsd.module import Module
from refsd.networks.component import Component


def _mistral(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return context(mistral(m, input_ids, attention_mask, **given), layers, MISTRAL_LAYERS)


COMPONENTS = {
    "mistral": Component(
        "mistral",
        _mistral,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"head_dim": 128, "layers": [], "theta": 1e9, "eps": 1e-5},
        with_head_dim,
        also={"context": "N L 3D"},
    ),
}
