"""Stable Diffusion 3 and 3.5: an MMDiT conditioned on hidden states of CLIP-L, bigG and, optionally, T5."""

from collections.abc import Mapping

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, constant_shift
from refsd.families.flux import TINY_VAE as TINY_FLUX_VAE
from refsd.families.sdxl import TINY_BIGG, TINY_CLIP
from refsd.families.text_encoders import (
    CLIP_L,
    DIFFUSERS,
    OPEN_CLIP,
    SDCPP,
    T5,
    T5_CHUNKS,
    T5_COMFYUI,
    side_by_side,
)
from refsd.models.clip.network import CLIP_G
from refsd.models.clip.network import CLIP_L as CLIP_L_SIZE
from refsd.models.mmdit.network import SD3_MEDIUM, MMDiTSize
from refsd.models.mmdit.network import SD35_LARGE as LARGE
from refsd.models.mmdit.network import SD35_MEDIUM as MEDIUM
from refsd.models.t5.network import T5_XXL
from refsd.models.vae.network import SD3_VAE
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel, RecipePart, alone
from refsd.numerics.errors import BadInput

# Engine -> number of zero tokens that replace T5's hidden states.
WITHOUT_T5 = {"sdcpp": 77, "diffusers": 256, "comfyui": 0}


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    if any(".attn2." in name for name in shapes):
        return "sd35-medium", "its picture has a second attention"
    if any(".ln_q." in name for name in shapes):
        return "sd35-large", "its queries and keys are normed"
    return "sd3", "its queries and keys are not normed"


def join(prompt: EncodedPrompt) -> Condition:
    """Concatenate CLIP-L and bigG on channels, pad with zeros to T5's channels, and append T5's tokens.

    y: both pooled texts

    Source: Esser et al. 2024, section B.3; diffusers StableDiffusion3Pipeline.encode_prompt.
    """
    l, g = prompt.encoders["clip"], prompt.encoders["clip_g"]
    clip = side_by_side(l.hidden, g.hidden)
    if "t5" in prompt.encoders:
        t5 = prompt.encoders["t5"].hidden
    else:
        width = prompt.network.shape("context_embedder.weight")[1]
        t5 = np.zeros((len(clip), prompt.convention.row(WITHOUT_T5), width), clip.dtype)
    if t5.shape[2] < clip.shape[2] or len(t5) != len(clip):
        raise BadInput(f"T5's hidden states are {list(t5.shape)}, CLIP's {list(clip.shape)}: they do not fit")
    clip = np.pad(clip, ((0, 0), (0, 0), (0, t5.shape[2] - clip.shape[2])))
    return Condition(np.concatenate([clip, t5], axis=1), side_by_side(l.pooled, g.pooled))


_T5 = {
    "diffusers": T5._replace(length=256, source=DIFFUSERS + "stable_diffusion_3, _get_t5_prompt_embeds"),
    "sdcpp": T5_CHUNKS._replace(length=77, source=SDCPP + "SD3CLIPEmbedder"),
    "comfyui": T5_COMFYUI._replace(least=77, source="ComfyUI comfy/text_encoders/sd3_clip.py, T5XXLTokenizer"),
}
SD3 = Variant(
    "sd3",
    "Stable Diffusion 3",
    {
        "clip": CLIP_L._replace(projected=True),
        "clip_g": OPEN_CLIP,
        "t5": TextEncoder(_T5, optional=True),
    },
    join,
    {"sdcpp": "discrete", "diffusers": "flow_linspace", "comfyui": "sgm_uniform"},
    Flow(constant_shift(3.0)),
    clip_layer=2,
    final_norm=False,
    steps=28,
    latent_format="sd3",
    other_engines=("comfyui",),
)
SD35_MEDIUM = SD3._replace(name="sd35-medium", title="Stable Diffusion 3.5 medium", cfg_scale=4.5)
SD35_LARGE = SD35_MEDIUM._replace(name="sd35-large", title="Stable Diffusion 3.5 large")

_ENCODERS = {"clip": CLIP_L_SIZE, "clip_g": CLIP_G, "t5": T5_XXL}
SIZES = {
    "Stable Diffusion 3": {"mmdit": SD3_MEDIUM, **_ENCODERS},
    "Stable Diffusion 3.5 medium": {"mmdit": MEDIUM, **_ENCODERS},
    "Stable Diffusion 3.5 large": {"mmdit": LARGE, **_ENCODERS},
}
_TINY = MMDiTSize(hidden=128, blocks=2, mlp=512, table=16, context_dim=128, pooled=96)
# As deep as SD 3 medium: stable-diffusion.cpp accepts no other depth.
_NARROW = LARGE._replace(hidden=1536, blocks=24, mlp=6144)
RECIPES = {
    # As SD 3 medium is released with its encoders, but for T5: it draws without one, from CLIP's vocabulary alone.
    "sd3": RecipeModel(
        {
            "mmdit": RecipePart(SD3_MEDIUM, _TINY._replace(pooled=32), "model.diffusion_model."),
            "vae": RecipePart(SD3_VAE, TINY_FLUX_VAE, "first_stage_model."),
            "clip": RecipePart(CLIP_L_SIZE, TINY_CLIP, "text_encoders.clip_l.transformer."),
            "clip_g": RecipePart(CLIP_G, TINY_BIGG, "text_encoders.clip_g.transformer."),
        },
        "sd3",
    ),
    "sd3-medium": alone("mmdit", SD3_MEDIUM, _TINY, "sd3"),
    "sd35-medium": alone("mmdit", MEDIUM, _TINY._replace(qk_norm=64, dual=(0,)), "sd3"),
    "sd35-large": alone("mmdit", LARGE, _TINY._replace(qk_norm=64), "sd3"),
    "sd35-large-narrow": alone("mmdit", _NARROW, _NARROW, "sd3"),
}

FAMILIES = (
    Family(
        "sd3",
        "2024-06",
        "mmdit",
        identify,
        (SD3, SD35_MEDIUM, SD35_LARGE),
        SIZES,
        RECIPES,
    ),
)
