"""Ideogram 4: a transformer conditioned on thirteen hidden states of Qwen3-VL 8B, with FLUX.2's autoencoder.

The call without a prompt has a network of its own, which a diffusers folder holds as `unconditional_transformer`:
there is no negative prompt.
"""

import math

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import ENGINES, Flow
from refsd.families.text_encoders import ASSISTANT, USER
from refsd.families.zimage import TO_DATA, TimeFromNoise
from refsd.models.ideogram4 import CONTEXT_LAYERS, UNCONDITIONAL
from refsd.models.ideogram4.network import IDEOGRAM4 as SIZE
from refsd.networks.recipe import RecipeModel, RecipePart, alone
from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_rules import Rows, TextRule, as_long_as_it_is

LENGTH = 2048


def not_cut(ids: list[int], room: int) -> Rows:
    """Return the tokens. Raises BadInput if they are too many."""
    if len(ids) > room:
        raise BadInput(f"the prompt has {len(ids)} tokens with its template; Ideogram 4 takes at most {room}")
    return [ids]


RULE = TextRule(
    LENGTH,
    not_cut,
    mask=True,
    around=(USER, ASSISTANT),
    fill=False,
    final_norm=False,
    source="diffusers pipelines/ideogram4, encode_prompt",
)
COMFYUI = RULE._replace(length=None, over=as_long_as_it_is, plain=True, source="ComfyUI text_encoders/ideogram4.py")
RULES = {**dict.fromkeys(ENGINES, RULE), "comfyui": COMFYUI}
# 7, and 3 in the last 3 of 48 steps; ComfyUI's template has CFGOverride from the level 0.3 down.
SCALES = {
    "sdcpp": lambda sigmas: (7.0,) * 45 + (3.0,) * 3 if len(sigmas) == 48 else (),
    "comfyui": lambda sigmas: tuple(3.0 if sigma <= 1 - 0.7 else 7.0 for sigma in sigmas),
}


def join(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states with the layers of each channel together; without a prompt a token of padding.

    Raises BadInput for a negative prompt, and for a call without a prompt if its network is missing.
    Source: diffusers Ideogram4Pipeline.encode_prompt, __call__.
    """
    (encoded,) = prompt.encoders.values()
    N, J, E = encoded.hidden.shape
    if not prompt.negative:
        layers = encoded.hidden.reshape(N, J, len(CONTEXT_LAYERS), -1)
        return Condition(layers.swapaxes(2, 3).reshape(N, J, E))
    if not prompt.empty:
        raise BadInput("--negative-prompt: Ideogram 4 is guided by a network that sees no words; leave it out")
    if UNCONDITIONAL not in prompt.network:
        raise BadInput(
            f"Ideogram 4's guidance needs its second network, a folder {UNCONDITIONAL} beside transformer; "
            "--cfg-scale 1 draws without"
        )
    return Condition(np.zeros((N, 1, E), encoded.hidden.dtype), mask=np.zeros((N, 1), np.int64))


def shift_by_tokens(tokens: int, steps: int) -> float:
    """Return the root of the picture's area in those of 512 x 512. Source: diffusers, _resolution_aware_mu."""
    return math.sqrt(tokens / 1024)


# refsd has seen no port of stable-diffusion.cpp; its command line's conventions take diffusers' text and shift.
IDEOGRAM4 = Variant(
    "ideogram4",
    "Ideogram 4",
    {"qwen3_vl": TextEncoder(RULES, "hidden_states", layers=CONTEXT_LAYERS)},
    join,
    dict.fromkeys(ENGINES, "flow_logit_normal"),
    Flow(dict.fromkeys(ENGINES, shift_by_tokens), levels=TimeFromNoise, prediction=TO_DATA, of_pipeline=ENGINES),
    steps=48,
    cfg_scale=7.0,
    guidance_schedule=SCALES,
    latent_format="flux2",
    zeroed={"sdcpp": False, "comfyui": True},  # its template's ConditioningZeroOut
    other_engines=("comfyui",),
    params={"sdcpp": {}, "comfyui": {"squares_first": False}},
    decoding={"sdcpp": {"squares_first": True}, "comfyui": {"squares_first": False}},
)
_TINY = SIZE._replace(hidden=512, layers=2, mlp=384, channels=16, knobs=64, context_dim=128)
FAMILIES = (
    Family(
        "ideogram4",
        "2026-06",
        "ideogram4",
        lambda shapes: ("ideogram4", "it embeds whether a token is the picture's (embed_image_indicator)"),
        (IDEOGRAM4,),
        sizes={"Ideogram 4": {"ideogram4": SIZE}},
        recipes={
            "ideogram4": alone("ideogram4", SIZE, _TINY, "ideogram4"),
            "ideogram4-guided": RecipeModel(
                {
                    "ideogram4": RecipePart(SIZE, _TINY, "model.diffusion_model."),
                    "ideogram4-unconditional": RecipePart(SIZE, _TINY, f"{UNCONDITIONAL}."),
                },
                "ideogram4",
            ),
        },
    ),
)
