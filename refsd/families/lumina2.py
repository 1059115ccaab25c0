"""Lumina-Image 2.0: a transformer conditioned on Gemma 2's penultimate hidden states, with FLUX.1's latents."""

import numpy as np

from refsd.families.family import Family, TextEncoder, Variant
from refsd.families.flow import Flow, constant_shift
from refsd.families.text_encoders import GEMMA2, GEMMA2_NEGATIVE
from refsd.families.zimage import TO_DATA, TimeFromNoise, join
from refsd.models.lumina2.network import LUMINA2 as SIZE
from refsd.networks.recipe import alone
from refsd.samplers.guidance import guide, rescale_rows
from refsd.tokenizers.text_rules import as_long_as_it_is


def guide_rows(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Guide, then give each row of each channel the length that cond has. ([N, C, H, W] each)"""
    return rescale_rows(guide(cond, uncond, scale), cond)


# In ComfyUI the user writes the system prompt, if any, in front of the prompt.
COMFYUI = GEMMA2_NEGATIVE._replace(
    length=None, over=as_long_as_it_is, source="ComfyUI comfy/text_encoders/lumina2.py, LuminaTokenizer"
)


def _rules(rule):
    """stable-diffusion.cpp has no Lumina 2; its command line's conventions take diffusers' text."""
    return {"diffusers": rule, "sdcpp": rule, "comfyui": COMFYUI}


# Gemma's padding is left out on either side, as Z-Image's: diffusers masks it, behind the prompt.
LUMINA2 = Variant(
    "lumina2",
    "Lumina 2",
    {
        "gemma2": TextEncoder(
            _rules(GEMMA2),
            "penultimate",
            negative_rules=_rules(GEMMA2_NEGATIVE),
            params={"sdcpp": {}, "comfyui": {"cap": 1e18}},  # limits no score
        )
    },
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform", "comfyui": "simple"},
    Flow(constant_shift(6.0), levels=TimeFromNoise, prediction=TO_DATA),
    guide={"sdcpp": guide, "diffusers": guide_rows},
    steps=30,
    cfg_scale=4.0,
    latent_format="flux",
    other_engines=("comfyui",),
)
# The time is embedded as wide as the stream, up to 1024 channels.
_TINY = SIZE._replace(hidden=384, layers=2, keys=192, mlp=1024, context_dim=128, time_dim=384)
FAMILIES = (
    Family(
        "lumina2",
        "2025-02",
        "lumina2",
        lambda shapes: ("lumina2", "it has a cap_embedder, and a SiLU before each modulation"),
        (LUMINA2,),
        {"Lumina-Image 2.0": {"lumina2": SIZE}},
        {"lumina2": alone("lumina2", SIZE, _TINY, "lumina2")},
    ),
)
