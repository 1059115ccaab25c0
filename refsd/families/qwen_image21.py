"""Qwen-Image 2.1: text to image and edits, conditioned on the output of Qwen3-VL 8B's last layer, without guidance.

The pictures to edit stand in the prompt: the text encoder has the vision tower's tokens there, the denoiser the
autoencoder's latents.

Turbo has the same tensors; its folder brings the 8 noise levels of its steps, which are not shifted.
"""

import math

from refsd.families.editing import QWEN_IMAGE_21_EDITINGS
from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, ten_thousand_levels, unit_time
from refsd.families.text_encoders import ASSISTANT, DIFFUSERS, USER
from refsd.models.qwen_image21.network import QWEN_IMAGE21
from refsd.networks.recipe import alone
from refsd.samplers.schedules.flow import qwen_image_mu
from refsd.tokenizers.text_rules import TextRule, as_long_as_it_is

# The system's 14 tokens are dropped. An empty prompt counts as a space.
COMPREHEND = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
RULE = TextRule(
    None,
    as_long_as_it_is,
    mask=True,
    around=(COMPREHEND + USER, ASSISTANT),
    drop=14,
    empty=" ",
    final_norm=False,
    source=DIFFUSERS + "qwenimage21, _get_qwen_prompt_embeds",
)
COMFYUI = RULE._replace(empty="", plain=True, source="ComfyUI comfy/text_encoders/qwen_image21.py")


def join(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states of the prompt without the system's. They are of one prompt, which has no padding."""
    (encoded,) = prompt.encoders.values()
    return Condition(encoded.hidden, places=encoded.places)


def shift_by_tokens(tokens: int, steps: int) -> float:
    return math.exp(qwen_image_mu(tokens))


def shift_of_comfyui(tokens: int, steps: int) -> float:
    """Return ComfyUI's where no node sets it, that of 1024 x 1024. Source: ComfyUI comfy/supported_models.py."""
    return math.exp(0.69)


# refsd has not seen stable-diffusion.cpp's port; its command line's conventions take diffusers' text and shift.
QWEN21 = Variant(
    "qwen-image21",
    "Qwen-Image 2.1",
    {"qwen3_vl": TextEncoder({"diffusers": RULE, "sdcpp": RULE, "comfyui": COMFYUI})},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_terminal", "comfyui": "simple"},
    Flow(
        {"diffusers": shift_by_tokens, "sdcpp": shift_by_tokens, "comfyui": shift_of_comfyui},
        levels=unit_time,
        side=1,
        of_engine={"comfyui": ten_thousand_levels},
        of_flag={"comfyui": unit_time},  # ModelSamplingAuraFlow
    ),
    steps=40,
    cfg_scale=1.0,
    rounds_size_down=True,
    editing=QWEN_IMAGE_21_EDITINGS,
    editing_rule=RULE,
    other_engines=("comfyui",),
)
_TINY = QWEN_IMAGE21._replace(hidden=256, layers=2, mlp=768, context_dim=128)
FAMILIES = (
    Family(
        "qwen-image21",
        "2026-09",
        "qwen-image21",
        lambda shapes: ("qwen-image21", "it has a txt_in.text_norm and one modulation for all blocks"),
        (QWEN21,),
        sizes={"Qwen-Image 2.1": {"qwen-image21": QWEN_IMAGE21}},
        recipes={"qwen-image21": alone("qwen-image21", QWEN_IMAGE21, _TINY, "qwen_image21")},
    ),
)
