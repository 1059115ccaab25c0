"""Anima: Cosmos-Predict2's transformer, conditioned on Qwen3 0.6B through T5's tokens. Only the network so far."""

from refsd.families.family import Condition, EncodedPrompt, Family, Flow, Variant, constant_shift, unit_time
from refsd.models.anima.network import ANIMA as SIZE
from refsd.networks.recipe import alone


def join(prompt: EncodedPrompt) -> Condition:
    """Return the text conditioner's output."""
    (encoded,) = prompt.encoders.values()
    return Condition(encoded.hidden)


ANIMA = Variant(
    "anima",
    "Anima",
    {},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform"},
    Flow(constant_shift(3.0), levels=unit_time),
    steps=50,
    cfg_scale=4.0,
    draws=False,
)
_TINY = SIZE._replace(hidden=256, layers=2, mlp=512, rank=32, context_dim=128)
FAMILIES = (
    Family(
        "anima",
        "2026-01",
        "anima",
        lambda shapes: ("anima", "its blocks have adaln_modulation_self_attn"),
        (ANIMA,),
        sizes={"Anima": {"anima": SIZE}},
        recipes={"anima": alone("anima", SIZE, _TINY, "anima")},
    ),
)
