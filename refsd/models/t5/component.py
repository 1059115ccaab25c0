"""The component of T5 and UMT5."""

from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS
from refsd.models.t5 import t5_encoder
from refsd.networks.component import Component, exactly

COMPONENTS = {
    "t5": Component(
        "t5",
        t5_encoder,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D"},
        {},
        lambda m: {"V": exactly(m.shape("shared.weight")[0])},
    ),
}
