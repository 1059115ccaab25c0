"""FLUX.2: dev is conditioned on Mistral's hidden states, klein on Qwen3's. The autoencoder normalises latents."""

import math
from collections.abc import Mapping

import numpy as np

from refsd.families.editing import cut_to_tokens, sdcpp_references
from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import ENGINES, Flow, ten_thousand_levels, unit_time
from refsd.families.text_encoders import ASSISTANT, DIFFUSERS, QWEN3, QWEN3_COMFYUI, QWEN3_SDCPP, SDCPP, USER
from refsd.models.flux2.network import FLUX2_DEV, FLUX2_KLEIN_4B, FLUX2_KLEIN_9B, Flux2Size
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3.network import QWEN3_4B
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import alone
from refsd.samplers.schedules.flow import flux2_mu
from refsd.tokenizers.text_rules import TextRule, as_long_as_it_is, cut_off

SYSTEM = (
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on "
    "object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]"
)
NOT_THINKING = ASSISTANT + "<think>\n\n</think>\n\n"
LENGTH = 512
ZEROS_FIRST = {"sdcpp": False, "diffusers": False, "comfyui": True}
COMFYUI = "ComfyUI comfy/text_encoders/flux.py, "


def identify_dev(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    if "guidance_in.in_layer.weight" not in shapes:
        return None
    return "flux2-dev", "one modulation serves all blocks, and it embeds a guidance"


def identify_klein(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    if "guidance_in.in_layer.weight" in shapes:
        return None
    return "flux2-klein", "one modulation serves all blocks, and it embeds no guidance"


def join(prompt: EncodedPrompt) -> Condition:
    """Return three layers' hidden states concatenated on channels (`stacked`), with zeros up to LENGTH tokens.

    Source: diffusers Flux2Pipeline, Flux2KleinPipeline; stable-diffusion.cpp hidden_states_min_length; ComfyUI
    comfy/model_base.py, Flux2, whose zeros stand before the prompt.
    """
    (encoded,) = prompt.encoders.values()
    lacking = max(0, LENGTH - encoded.hidden.shape[1])
    zeros = (lacking, 0) if prompt.convention.row(ZEROS_FIRST) else (0, lacking)
    return Condition(np.pad(encoded.hidden, ((0, 0), zeros, (0, 0))))


def shift_by_tokens_and_steps(tokens: int, steps: int) -> float:
    return math.exp(flux2_mu(tokens, steps))


_QWEN3 = {
    "diffusers": QWEN3._replace(around=(USER, NOT_THINKING), source=DIFFUSERS + "flux2, pipeline_flux2_klein.py"),
    "sdcpp": QWEN3_SDCPP._replace(
        length=LENGTH, around=(USER, NOT_THINKING), source=SDCPP + "LLMEmbedder, min_length"
    ),
    "comfyui": QWEN3_COMFYUI._replace(around=(USER, NOT_THINKING), least=LENGTH, source=COMFYUI + "KleinTokenizer"),
}
_MISTRAL = TextRule(LENGTH, cut_off, bos=True, mask=True, around=(SYSTEM, "[/INST]"))
# stable-diffusion.cpp pads the context with zeros, not the prompt with tokens.
_MISTRALS = {
    "diffusers": _MISTRAL._replace(without="[IMG]", source=DIFFUSERS + "flux2, format_input"),
    "sdcpp": _MISTRAL._replace(
        length=None, over=as_long_as_it_is, source=SDCPP + "LLMEmbedder, hidden_states_min_length"
    ),
    "comfyui": _MISTRAL._replace(length=None, over=as_long_as_it_is, plain=True, source=COMFYUI + "Flux2Tokenizer"),
}
KLEIN = Variant(
    "flux2-klein",
    "FLUX.2 klein",
    {"qwen3": TextEncoder(_QWEN3, "context")},
    join,
    dict.fromkeys((*ENGINES, "comfyui"), "flow_uniform"),
    Flow(
        dict.fromkeys((*ENGINES, "comfyui"), shift_by_tokens_and_steps),
        math.exp,
        unit_time,
        of_engine={"comfyui": ten_thousand_levels},
    ),
    steps=4,
    cfg_scale=1.0,
    latent_format="flux2",
    rounds_size_down=True,
    references={"sdcpp": sdcpp_references, "diffusers": cut_to_tokens},
    # stable-diffusion.cpp runs klein-9b-kv as klein.
    params={"sdcpp": {"cached_references": False}, "diffusers": {}},
    other_engines=("comfyui",),
)
DEV = KLEIN._replace(
    name="flux2-dev",
    title="FLUX.2 dev",
    encoders={"mistral": TextEncoder(_MISTRALS, "context")},
    steps=50,
    guidance=4.0,
)

_TINY = Flux2Size(256, 1, 2, mlp=768, context_dim=128)
# As deep as dev, because some engines accept no other depth.
_NARROW = FLUX2_DEV._replace(hidden=256, mlp=768, context_dim=128)
FAMILIES = (
    Family(
        "flux2-dev",
        "2025-11",
        "flux2",
        identify_dev,
        (DEV,),
        sizes={"FLUX.2 dev": {"flux2": FLUX2_DEV, "mistral": MistralSize()}},
        recipes={
            "flux2-dev": alone("flux2", FLUX2_DEV, _TINY, "flux2"),
            "flux2-dev-narrow": alone("flux2", _NARROW, _NARROW, "flux2"),
        },
    ),
    Family(
        "flux2-klein",
        "2026-01",
        "flux2",
        identify_klein,
        (KLEIN,),
        sizes={
            "FLUX.2 klein 4B": {"flux2": FLUX2_KLEIN_4B, "qwen3": QWEN3_4B},
            "FLUX.2 klein 9B": {"flux2": FLUX2_KLEIN_9B},
        },
        recipes={"flux2-klein": alone("flux2", FLUX2_KLEIN_4B, _TINY._replace(guidance=False), "flux2")},
    ),
)
