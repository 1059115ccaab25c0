"""The component of T5 and UMT5."""

from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS
from refsd.models.t5 import t5_encoder
from refsd.module import Module
from refsd.networks.component import Component
from refsd.networks.fits import Fit, at_least, exactly


def _fits(m: Module) -> dict[str, Fit]:
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    # A quarter of the buckets are for one distance each.
    return {"V": exactly(m.shape("shared.weight")[0]), "max_distance": at_least(m.shape(table)[0] // 4 + 1)}


COMPONENTS = {
    "t5": Component(
        "t5",
        t5_encoder,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D"},
        {"max_distance": 128, "eps": 1e-6},
        _fits,
    ),
}
