"""Chroma: FLUX.1 schnell without CLIP, conditioned on T5's hidden states and a mask of their padding."""

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import ten_thousand_levels
from refsd.families.flux import SCHEDULE, UNSHIFTED
from refsd.families.text_encoders import DIFFUSERS, SDCPP, T5, T5_CHUNKS, T5_COMFYUI
from refsd.models.chroma.network import CHROMA as CHROMA_SIZE
from refsd.models.chroma.network import ChromaSize
from refsd.models.t5.network import T5_XXL
from refsd.networks.recipe import alone


def join(prompt: EncodedPrompt) -> Condition:
    """Return T5's hidden states, with a mask that shows the denoiser the prompt and the first padding token.

    Source: diffusers ChromaPipeline._get_t5_prompt_embeds; stable-diffusion.cpp modify_mask_to_attend_padding.
    """
    t5 = prompt.encoders["t5"]
    lengths = t5.mask.sum(axis=1, keepdims=True)
    return Condition(t5.hidden, mask=(np.arange(t5.hidden.shape[1]) < lengths + 1).astype(np.int64))


_T5 = {
    "diffusers": T5._replace(mask=True, source=DIFFUSERS + "chroma, _get_t5_prompt_embeds"),
    "sdcpp": T5_CHUNKS._replace(length=512, source=SDCPP + "T5CLIPEmbedder, use_mask false"),
    "comfyui": T5_COMFYUI._replace(
        least=1, empty_ends=False, source="ComfyUI comfy/text_encoders/pixart_t5.py, T5XXLTokenizer, T5XXLModel"
    ),
}
# ComfyUI's own shift is that of FLUX.1; its templates' ModelSamplingAuraFlow takes it away.
CHROMA = Variant(
    "chroma",
    "Chroma",
    {"t5": TextEncoder(_T5)},
    join,
    {**SCHEDULE, "comfyui": "beta"},
    UNSHIFTED._replace(of_flag={"comfyui": ten_thousand_levels}),  # ModelSamplingFlux
    steps=35,
    cfg_scale=5.0,
    latent_format="flux",
    rounds_size_down=True,
    other_engines=("comfyui",),
)

TINY = ChromaSize(256, 1, 2, mlp=1024, context_dim=128, width=64, layers=2)
# As deep as Chroma, because some engines accept no other depth.
NARROW = CHROMA_SIZE._replace(hidden=256, mlp=1024)

FAMILIES = (
    Family(
        "chroma",
        "2025-03",
        "chroma",
        lambda shapes: ("chroma", "it has a distilled_guidance_layer"),
        (CHROMA,),
        {"Chroma": {"chroma": CHROMA_SIZE, "t5": T5_XXL}},
        {
            "chroma": alone("chroma", CHROMA_SIZE, TINY, "flux"),
            "chroma-narrow": alone("chroma", NARROW, NARROW, "flux"),
        },
    ),
)
