"""FLUX.1 (dev, Kontext, schnell, Fill, Canny, Depth), conditioned on T5's hidden states, CLIP-L's pooled text."""

import math
from collections.abc import Mapping

from refsd.families.editing import rounded_down, sdcpp_references
from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import ENGINES, Flow, shift_of_comfyui, ten_thousand_levels, unit_time
from refsd.families.text_encoders import CLIP, T5, T5_CHUNKS, T5_COMFYUI
from refsd.models.clip.network import CLIP_L
from refsd.models.flux.network import FLUX_CONTROL, FLUX_DEV, FLUX_FILL, FLUX_SCHNELL, FluxSize
from refsd.models.t5.network import T5_XXL
from refsd.models.vae.network import FLUX_VAE, VAESize
from refsd.networks.dimensions import Shape, dim
from refsd.networks.recipe import alone
from refsd.samplers.schedules.flow import flux_mu


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    channels = dim(shapes, "img_in.weight", 1, 0)
    if channels == 384:
        return "flux-fill", "img_in takes 384 channels"
    if channels == 128:
        return "flux-control", "img_in takes 128 channels"
    if "guidance_in.in_layer.weight" in shapes:
        return "flux-dev", "it embeds a guidance"
    return "flux-schnell", "it embeds no guidance"


def join(prompt: EncodedPrompt) -> Condition:
    """Return T5's hidden states, padding included, and CLIP-L's pooled text.

    Source: diffusers FluxPipeline.encode_prompt.
    """
    return Condition(prompt.encoders["t5"].hidden, prompt.encoders["clip"].pooled)


def shift_by_tokens(tokens: int, steps: int) -> float:
    return math.exp(flux_mu(tokens))


def no_shift(tokens: int, steps: int) -> float:
    return 1.0


SCHEDULE = dict.fromkeys(ENGINES, "flow_uniform") | {"comfyui": "simple"}
FLOW = Flow(
    dict.fromkeys(ENGINES, shift_by_tokens) | {"comfyui": shift_of_comfyui},
    math.exp,
    unit_time,
    of_engine={"comfyui": ten_thousand_levels},
)
# schnell and Chroma were trained without a shift, but stable-diffusion.cpp's schedule `flux` shifts their times.
UNSHIFTED = Flow({"sdcpp": shift_by_tokens, "diffusers": no_shift, "comfyui": no_shift}, math.exp, unit_time)

DEV = Variant(
    "flux-dev",
    "FLUX.1 dev or Kontext",
    {
        "clip": TextEncoder({"diffusers": CLIP, "sdcpp": CLIP}),
        "t5": TextEncoder({"diffusers": T5, "sdcpp": T5_CHUNKS, "comfyui": T5_COMFYUI}),
    },
    join,
    SCHEDULE,
    FLOW,
    steps=28,
    cfg_scale=1.0,
    latent_format="flux",
    rounds_size_down=True,
    references={"sdcpp": sdcpp_references, "diffusers": rounded_down},
    other_engines=("comfyui",),
)
SCHNELL = DEV._replace(name="flux-schnell", title="FLUX.1 schnell", flow=UNSHIFTED, steps=4)
_SHOWN = DEV._replace(other_engines=())
FILL = _SHOWN._replace(name="flux-fill", title="FLUX.1 Fill", guidance=30.0, extra_channels="fill")
CONTROL = _SHOWN._replace(
    name="flux-control", title="FLUX.1 Canny or Depth", guidance=10.0, extra_channels="control"
)

_TINY = FluxSize(hidden=256, double_blocks=1, single_blocks=2, mlp=1024)
TINY_VAE = VAESize(32, (32, 64, 128, 128), latent_channels=16, quant_convs=False)
RECIPES = {
    "flux-dev": alone("flux", FLUX_DEV, _TINY, "flux"),
    "flux-schnell": alone("flux", FLUX_SCHNELL, _TINY._replace(guidance=False), "flux"),
    "flux-fill": alone("flux", FLUX_FILL, _TINY._replace(in_channels=384), "flux"),
    "flux-control": alone("flux", FLUX_CONTROL, _TINY._replace(in_channels=128), "flux"),
    "flux-vae": alone("vae", FLUX_VAE, TINY_VAE, "vae"),
}

FAMILIES = (
    Family(
        "flux",
        "2024-08",
        "flux",
        identify,
        (DEV, SCHNELL, FILL, CONTROL),
        {"FLUX.1": {"flux": FLUX_DEV, "clip": CLIP_L, "t5": T5_XXL}},
        RECIPES,
    ),
)
