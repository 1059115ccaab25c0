"""The component of Mistral Small and Ministral 3."""

import math

from refsd.models.flux2 import MISTRAL_LAYERS
from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, selecting, with_head_dim
from refsd.models.mistral import mistral
from refsd.module import Module
from refsd.networks.component import Component
from refsd.networks.fits import Fit


def _fits(m: Module) -> dict[str, Fit]:
    def holds(beta) -> bool:
        return type(beta) in (int, float) and 0 <= beta < math.inf

    return with_head_dim(m) | {"query_beta": Fit(0, "a number, 0 or more", holds, alone=True)}


COMPONENTS = {
    "mistral": Component(
        "mistral",
        selecting(mistral, MISTRAL_LAYERS),
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {
            "head_dim": 128,
            "layers": [],
            "theta": 1e9,
            "eps": 1e-5,
            "factor": 1.0,
            "trained_length": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
            "attention_factor": 1.0,
            "query_beta": 0.0,
        },
        _fits,
        also={"context": "N L 3D"},
    ),
}
