"""Anima: Cosmos-Predict2's transformer, conditioned on Qwen3 0.6B through T5's tokens; Qwen-Image's autoencoder.

The prompt is tokenized twice: Qwen3's tokens are encoded, the text conditioner has T5's attend to that encoding.
"""

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, constant_shift, unit_time
from refsd.families.text_encoders import SDCPP
from refsd.models.anima.network import ANIMA as SIZE
from refsd.models.anima_conditioner.network import CONDITIONER, TINY_CONDITIONER
from refsd.networks.recipe import RecipeModel, RecipePart
from refsd.tokenizers.text_rules import TextRule, as_long_as_it_is, cut_off

# The prompt as it is, without a template. Of an empty prompt Qwen3 gets one token, masked in diffusers.
QWEN3 = TextRule(
    512, cut_off, mask=True, fill=False, source="diffusers modular_pipelines/anima, AnimaTextEncoderStep"
)
T5 = QWEN3._replace(eos=True)
QWEN3_SDCPP = QWEN3._replace(
    length=None, over=as_long_as_it_is, empty="<|endoftext|>", source=SDCPP + "AnimaConditioner"
)
T5_SDCPP = QWEN3_SDCPP._replace(eos=True, empty="")


def unweighted(hidden, weights):
    """Leave Qwen3's hidden states as they are. Source: ComfyUI comfy/text_encoders/anima.py, AnimaTokenizer."""
    return hidden


def multiplied(hidden, weights):
    """Multiply each token's output by its weight; padding has none. hidden [1, T, D], weights [L] -> [1, T, D]

    Source: stable-diffusion.cpp src/anima.hpp; ComfyUI comfy/ldm/anima/model.py.
    """
    each = np.pad(weights, (0, hidden.shape[1] - len(weights)), constant_values=1)
    return hidden * each[None, :, None]


def join(prompt: EncodedPrompt) -> Condition:
    """Return the text conditioner's output; its padding is attended to as well."""
    return Condition(prompt.encoders["anima-conditioner"].hidden)


# The shift is stable-diffusion.cpp's default and ComfyUI's, whose prompt rules are the same; diffusers reads that
# of the folder's scheduler.
ANIMA = Variant(
    "anima",
    "Anima",
    {
        "qwen3": TextEncoder({"diffusers": QWEN3, "sdcpp": QWEN3_SDCPP}, weigh=unweighted),
        "anima-conditioner": TextEncoder({"diffusers": T5, "sdcpp": T5_SDCPP}, reads="qwen3", weigh=multiplied),
    },
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform", "comfyui": "simple"},
    Flow(constant_shift(3.0), levels=unit_time),
    steps=50,
    cfg_scale=4.0,
    params={"sdcpp": {}, "diffusers": {"qk_eps": 1e-5}},  # of diffusers' Attention; no config.json changes it
    other_engines=("comfyui",),
)
_TINY = SIZE._replace(hidden=256, layers=2, mlp=512, rank=32, context_dim=128)
FAMILIES = (
    Family(
        "anima",
        "2026-01",  # no original says it; families are listed in this order
        "anima",
        lambda shapes: ("anima", "its blocks have adaln_modulation_self_attn"),
        (ANIMA,),
        sizes={"Anima": {"anima": SIZE, "anima-conditioner": CONDITIONER}},
        recipes={
            "anima": RecipeModel(
                {
                    "anima": RecipePart(SIZE, _TINY),
                    "anima-conditioner": RecipePart(CONDITIONER, TINY_CONDITIONER, "llm_adapter."),
                },
                "anima",
            )
        },
    ),
)
