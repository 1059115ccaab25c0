"""The component of Qwen3."""

from refsd.models.flux2 import QWEN3_LAYERS
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, selecting, vocabulary
from refsd.models.qwen3 import qwen3
from refsd.networks.component import Component

COMPONENTS = {
    "qwen3": Component(
        "qwen3",
        selecting(qwen3, QWEN3_LAYERS),
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"layers": [], "theta": 1e6, "eps": 1e-6},
        vocabulary,
        also={"context": "N L 3D"},
    ),
}
