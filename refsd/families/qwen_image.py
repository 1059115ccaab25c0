"""Qwen-Image: text to image, Edit and Layered, conditioned on Qwen2.5-VL's last hidden states.

For Edit the text encoder sees the pictures too; for Layered it sees the words alone.
"""

import math
from collections.abc import Mapping

import numpy as np

from refsd.families.editing import LAYERED as LAYERED_EDITING
from refsd.families.editing import QWEN_IMAGE_EDITINGS
from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, shift_of_comfyui, ten_thousand_levels, unit_time
from refsd.families.text_encoders import QWEN_IMAGE as RULE
from refsd.families.text_encoders import QWEN_IMAGE_COMFYUI, QWEN_IMAGE_EDIT, QWEN_IMAGE_SDCPP
from refsd.models.qwen_image.network import QWEN_IMAGE, QWEN_IMAGE_LAYERED, ZERO_COND_T
from refsd.models.qwen_image_controlnet.network import QWEN_IMAGE_CONTROL, TINY_CONTROL
from refsd.models.qwen_vl.network import QWEN2_5_VL_7B
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel, RecipePart, alone
from refsd.samplers.guidance import guide, rescale_tokens
from refsd.samplers.schedules.flow import qwen_image_mu


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    if ZERO_COND_T in shapes:
        return "qwen-image-edit-2511", f'it holds "{ZERO_COND_T}"'
    return "qwen-image", "its blocks are all double and have txt_mod"


def identify_layered(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    return "qwen-image-layered", "its time has a second embedding"


def join(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states of the prompt without its template's first part.

    Source: diffusers QwenImagePipeline._get_qwen_prompt_embeds.
    """
    (encoded,) = prompt.encoders.values()
    mask = np.asarray(encoded.mask)
    return Condition(encoded.hidden, mask=None if mask.all() else mask)


def guide_tokens(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Guide, then give each token the length that it has with the prompt alone. ([N, C, H, W] each)"""
    return rescale_tokens(guide(cond, uncond, scale), cond)


def shift_by_tokens(tokens: int, steps: int) -> float:
    return math.exp(qwen_image_mu(tokens))


def shift_of_layers(tokens: int, steps: int) -> float:
    """Return exp(mu): mu is the root of the tokens of the picture to take apart, counted in those of 256 x 256.

    Source: diffusers QwenImageLayeredPipeline.__call__.
    """
    return math.exp(math.sqrt(tokens / 256))


# stable-diffusion.cpp shifts all sizes by a constant, and does not rescale what it guides.
QWEN = Variant(
    "qwen-image",
    "Qwen-Image or Qwen-Image-Edit",
    {"qwen2_5_vl": TextEncoder({"diffusers": RULE, "sdcpp": QWEN_IMAGE_SDCPP, "comfyui": QWEN_IMAGE_COMFYUI})},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_terminal", "comfyui": "simple"},
    Flow(
        {"sdcpp": lambda tokens, steps: 3.0, "diffusers": shift_by_tokens, "comfyui": shift_of_comfyui},
        levels=unit_time,
        of_engine={"comfyui": ten_thousand_levels},
        of_flag={"comfyui": unit_time},  # ModelSamplingAuraFlow
    ),
    guide={"sdcpp": guide, "diffusers": guide_tokens},
    params={"sdcpp": {}, "diffusers": {}, "comfyui": {"middle_at_0": True}},
    steps=50,
    cfg_scale=4.0,
    rounds_size_down=True,
    editing=QWEN_IMAGE_EDITINGS,
    editing_rule=QWEN_IMAGE_EDIT,
    draws_hint=True,
    other_engines=("comfyui",),
)
GGUF = "qwen_image"  # the architecture that city96's converter names
EDIT_2511 = QWEN._replace(name="qwen-image-edit-2511", title="Qwen-Image-Edit 2511", other_engines=())
LAYERED = EDIT_2511._replace(
    name="qwen-image-layered",
    title="Qwen-Image-Layered",
    flow=Flow({"sdcpp": lambda tokens, steps: 3.0, "diffusers": shift_of_layers}, levels=unit_time),
    guide={"sdcpp": guide, "diffusers": guide},  # diffusers' cfg_normalize is off
    editing={"diffusers": {"": LAYERED_EDITING}},
    editing_rule=None,
    layers=4,
)

# In full width, because some engines accept no other.
_BLOCK = QWEN_IMAGE._replace(layers=1)
_TINY = QWEN_IMAGE._replace(hidden=256, layers=2, mlp=1024, context_dim=128)
FAMILIES = (
    Family(
        "qwen-image",
        "2025-08",
        "qwen-image",
        identify,
        (QWEN, EDIT_2511),
        sizes={"Qwen-Image": {"qwen-image": QWEN_IMAGE, "qwen2_5_vl": QWEN2_5_VL_7B}},
        recipes={
            "qwen-image": alone("qwen-image", QWEN_IMAGE, _TINY, GGUF),
            "qwen-image-control": RecipeModel(
                {
                    "qwen-image": RecipePart(QWEN_IMAGE, _TINY._replace(layers=3), "model.diffusion_model."),
                    "qwen-image-controlnet": RecipePart(QWEN_IMAGE_CONTROL, TINY_CONTROL, "control_model."),
                },
                GGUF,
            ),
            "qwen-image-block": alone("qwen-image", _BLOCK, _BLOCK, GGUF),
            "qwen-image-edit-2511": alone(
                "qwen-image", QWEN_IMAGE._replace(zero_cond_t=()), _TINY._replace(zero_cond_t=()), GGUF
            ),
        },
    ),
    Family(
        "qwen-image-layered",
        "2025-12",
        "qwen-image-layered",
        identify_layered,
        (LAYERED,),
        sizes={"Qwen-Image-Layered": {"qwen-image-layered": QWEN_IMAGE_LAYERED}},
        recipes={
            "qwen-image-layered": alone(
                "qwen-image-layered", QWEN_IMAGE_LAYERED, _TINY._replace(additions=2), GGUF
            ),
        },
    ),
)
