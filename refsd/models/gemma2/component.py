"""The component of Gemma 2."""

from refsd.models.gemma2 import CAP, HEAD_DIM, WINDOW, gemma2
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, selecting, with_head_dim
from refsd.networks.component import Component

COMPONENTS = {
    "gemma2": Component(
        "gemma2",
        selecting(gemma2),
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
