"""Wan 2.1 and 2.2: transformers of videos, conditioned on UMT5. Only the network: txt2img draws no videos."""

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import ENGINES, Flow, constant_shift
from refsd.families.text_encoders import DIFFUSERS, T5
from refsd.models.wan.network import WAN_1_3B, WAN_14B, WAN_I2V_14B
from refsd.networks.recipe import alone

UMT5 = T5._replace(mask=True, source=DIFFUSERS + "wan, _get_t5_prompt_embeds")


def join(prompt: EncodedPrompt) -> Condition:
    """Return UMT5's hidden states, those of the padding as zeros: the network attends to them.

    Source: diffusers WanPipeline._get_t5_prompt_embeds.
    """
    encoded = prompt.encoders["t5"]
    return Condition(np.where(encoded.mask[..., None] != 0, encoded.hidden, encoded.hidden.dtype.type(0)))


WAN = Variant(
    "wan",
    "Wan",
    {"t5": TextEncoder(dict.fromkeys(ENGINES, UMT5))},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform"},
    Flow(constant_shift(3.0)),
    steps=50,
    cfg_scale=5.0,
    draws=False,
)
# In full width, because that is where kernels differ.
_BLOCK = WAN_14B._replace(layers=1)
_TINY = WAN_14B._replace(hidden=256, layers=2, mlp=512, context_dim=128)
FAMILIES = (
    Family(
        "wan",
        "2025-03",
        "wan",
        lambda shapes: ("wan", "its blocks have self_attn and cross_attn"),
        (WAN,),
        sizes={
            "Wan 14B": {"wan": WAN_14B},
            "Wan 14B, image to video": {"wan": WAN_I2V_14B},
            "Wan 1.3B": {"wan": WAN_1_3B},
        },
        recipes={"wan": alone("wan", WAN_14B, _TINY, "wan"), "wan-block": alone("wan", _BLOCK, _BLOCK, "wan")},
    ),
)
