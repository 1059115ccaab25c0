"""Krea 2: a transformer conditioned on twelve hidden states of Qwen3-VL, with Qwen-Image's autoencoder.

--cfg-scale is the usual scale: diffusers' and Krea's guidance_scale is less by 1.
"""

import math

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, shift_of_comfyui, ten_thousand_levels, unit_time
from refsd.families.text_encoders import DIFFUSERS, QWEN_IMAGE, QWEN_IMAGE_COMFYUI
from refsd.models.krea2.network import KREA2 as SIZE
from refsd.models.krea2.network import PROJECTOR, file_names
from refsd.networks.recipe import alone
from refsd.samplers.schedules.flow import line_through
from refsd.tokenizers.text_rules import counted_positions

# The padding stands before the template's last 5 tokens, which are never cut.
RULE = QWEN_IMAGE._replace(
    kept=5, fill=True, positions=counted_positions, source=DIFFUSERS + "krea2, get_text_hidden_states"
)
COMFYUI = QWEN_IMAGE_COMFYUI._replace(source="ComfyUI comfy/text_encoders/krea2.py")


def join(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states of each token, and the mask of the padding before the template's end.

    Source: diffusers Krea2Pipeline.get_text_hidden_states.
    """
    (encoded,) = prompt.encoders.values()
    states = prompt.network.shape(PROJECTOR)[1]
    return Condition(encoded.hidden.reshape(*encoded.hidden.shape[:2], states, -1), mask=encoded.mask)


def shift_by_tokens(tokens: int, steps: int) -> float:
    """Return exp(mu): mu is a line in the tokens through (256, 0.5) and (6400, 1.15).

    Source: diffusers Krea2Pipeline.__call__, calculate_shift.
    """
    return math.exp(line_through(tokens, (256, 0.5), (6400, 1.15)))


# The released stable-diffusion.cpp has no Krea 2; its command line's conventions take diffusers' text and shift.
KREA2 = Variant(
    "krea2",
    "Krea 2",
    {"qwen3_vl": TextEncoder({"diffusers": RULE, "sdcpp": RULE, "comfyui": COMFYUI}, "context")},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform", "comfyui": "simple"},
    Flow(
        {"diffusers": shift_by_tokens, "sdcpp": shift_by_tokens, "comfyui": shift_of_comfyui},
        levels=unit_time,
        of_engine={"comfyui": ten_thousand_levels},
        of_flag={"comfyui": unit_time},  # ModelSamplingAuraFlow
    ),
    steps=28,
    cfg_scale=5.5,
    other_engines=("comfyui",),
)
_TINY = SIZE._replace(
    hidden=512,
    layers=2,
    keys=256,
    mlp=512,
    context_dim=128,
    states=4,
    text_head_dim=64,
    text_keys=128,
    text_mlp=256,
)
FAMILIES = (
    Family(
        "krea2",
        "2026-06",
        "krea2",
        lambda shapes: ("krea2", "it has a text_fusion"),
        (KREA2,),
        sizes={"Krea 2": {"krea2": SIZE}},
        recipes={"krea2": alone("krea2", SIZE, _TINY, "krea2", keymap=file_names)},
    ),
)
